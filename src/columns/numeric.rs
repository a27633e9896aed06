//! The stored form of numeric (numeric.c, "Numeric ... as stored on disk"): a header word of one
//! of three kinds, then digits of base 10000, without leading or trailing zero digits.

const SIGN_MASK: u16 = 0xC000;
const NEGATIVE: u16 = 0x4000;
const SHORT: u16 = 0x8000;
const SPECIAL: u16 = 0xC000;

const SHORT_NEGATIVE: u16 = 0x2000;
const SHORT_SCALE_MASK: u16 = 0x1F80;
const SHORT_SCALE_SHIFT: u32 = 7;
const SHORT_WEIGHT_SIGN: u16 = 0x0040;
const SHORT_WEIGHT_MASK: u16 = 0x003F;

const SPECIAL_MASK: u16 = 0xF000;
const POSITIVE_INFINITY: u16 = 0xD000;
const NEGATIVE_INFINITY: u16 = 0xF000;

const LONG_SCALE_MASK: u16 = 0x3FFF;

/// Decimal digits in one digit of base 10000.
pub(super) const DIGIT_WIDTH: i32 = 4;

/// A numeric, read from its stored form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Numeric<'a> {
    /// Not a number.
    NaN,
    /// `Infinity`.
    Infinity,
    /// `-Infinity`.
    NegativeInfinity,
    /// An ordinary number.
    Finite(Finite<'a>),
}

/// Sum of `digit(i) * 10000^(weight - i)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Finite<'a> {
    pub negative: bool,
    /// Power of 10000 of the first digit.
    pub weight: i32,
    /// Decimal digits shown after the point.
    pub scale: i32,
    /// Two bytes a digit, not aligned.
    digits: &'a [[u8; 2]],
}

impl Finite<'_> {
    pub fn len(&self) -> usize {
        self.digits.len()
    }

    /// The digit at this place, 0 outside of those stored.
    pub fn digit(&self, at: i32) -> u16 {
        let stored = usize::try_from(at).ok().and_then(|at| self.digits.get(at));
        stored.map_or(0, |bytes| u16::from_ne_bytes(*bytes))
    }
}

impl<'a> Numeric<'a> {
    /// Reads what follows the varlena header. `None`: these bytes are no numeric.
    pub fn parse(bytes: &'a [u8]) -> Option<Numeric<'a>> {
        let (words, _) = bytes.as_chunks::<2>();
        let (header, rest) = words.split_first()?;
        let header = u16::from_ne_bytes(*header);
        let finite = match header & SIGN_MASK {
            SPECIAL => {
                return Some(match header & SPECIAL_MASK {
                    POSITIVE_INFINITY => Numeric::Infinity,
                    NEGATIVE_INFINITY => Numeric::NegativeInfinity,
                    _ => Numeric::NaN,
                });
            }
            SHORT => {
                let low = i32::from(header & SHORT_WEIGHT_MASK);
                let sign_extension = match header & SHORT_WEIGHT_SIGN {
                    0 => 0,
                    _ => !i32::from(SHORT_WEIGHT_MASK),
                };
                Finite {
                    negative: header & SHORT_NEGATIVE != 0,
                    weight: sign_extension | low,
                    scale: i32::from((header & SHORT_SCALE_MASK) >> SHORT_SCALE_SHIFT),
                    digits: rest,
                }
            }
            sign => {
                let (weight, digits) = rest.split_first()?;
                Finite {
                    negative: sign == NEGATIVE,
                    weight: i32::from(i16::from_ne_bytes(*weight)),
                    scale: i32::from(header & LONG_SCALE_MASK),
                    digits,
                }
            }
        };
        Some(Numeric::Finite(finite))
    }
}

/// Stored forms for tests.
#[cfg(test)]
pub(super) mod stored {
    use super::*;

    fn bytes(words: impl IntoIterator<Item = u16>) -> Vec<u8> {
        words.into_iter().flat_map(u16::to_ne_bytes).collect()
    }

    /// As make_result writes numbers of small scale and weight.
    pub fn short(negative: bool, weight: i16, scale: u16, digits: &[u16]) -> Vec<u8> {
        let mut header = SHORT | scale << SHORT_SCALE_SHIFT | weight as u16 & SHORT_WEIGHT_MASK;
        if negative {
            header |= SHORT_NEGATIVE;
        }
        if weight < 0 {
            header |= SHORT_WEIGHT_SIGN;
        }
        bytes(std::iter::once(header).chain(digits.iter().copied()))
    }

    /// As make_result writes all others.
    pub fn long(negative: bool, weight: i16, scale: u16, digits: &[u16]) -> Vec<u8> {
        let header = if negative { NEGATIVE | scale } else { scale };
        bytes(
            [header, weight as u16]
                .into_iter()
                .chain(digits.iter().copied()),
        )
    }

    /// NaN, Infinity, -Infinity.
    pub fn specials() -> [Vec<u8>; 3] {
        [SPECIAL, POSITIVE_INFINITY, NEGATIVE_INFINITY].map(|word| bytes([word]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers() {
        let [nan, infinity, negative] = stored::specials();
        assert_eq!(Numeric::parse(&nan), Some(Numeric::NaN));
        assert_eq!(Numeric::parse(&infinity), Some(Numeric::Infinity));
        assert_eq!(Numeric::parse(&negative), Some(Numeric::NegativeInfinity));
        assert_eq!(Numeric::parse(&[]), None);
        assert_eq!(Numeric::parse(&0u16.to_ne_bytes()), None);
        for form in [stored::short, stored::long] {
            let bytes = form(true, -3, 17, &[12, 3400]);
            let Some(Numeric::Finite(number)) = Numeric::parse(&bytes) else {
                panic!()
            };
            assert!(number.negative);
            assert_eq!((number.weight, number.scale, number.len()), (-3, 17, 2));
            assert_eq!([-1, 0, 1, 2].map(|at| number.digit(at)), [0, 12, 3400, 0]);
        }
    }

    #[test]
    fn weights_of_the_short_form() {
        for weight in -64..=63 {
            let bytes = stored::short(false, weight, 63, &[1]);
            let Some(Numeric::Finite(number)) = Numeric::parse(&bytes) else {
                panic!()
            };
            assert_eq!((number.weight, number.scale), (i32::from(weight), 63));
        }
    }
}
