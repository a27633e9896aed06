//! jsonb as jsonb_out writes it, straight from its stored form (jsonb.h, "Jsonb on disk"). Done here
//! and not through the output function, which looks at each character of each string for itself
//! (json.c `escape_json`): with it, a table with one such column takes a tenth longer to decode.

use arrow::array::ArrayRef;
use pgrx::pg_sys::Datum;

use super::column::{Column, Strings};
use super::encoding::Encoding;
use super::error::Fault;
use super::numeric::Numeric;
use super::numeric_text;
use super::varlena;

// A container's header word: its kind, and how many elements or pairs it has.
const COUNT: u32 = 0x0FFF_FFFF;
/// The root of a value that is neither array nor object: an array of one, not shown as such.
const IS_SCALAR: u32 = 0x1000_0000;
const IS_OBJECT: u32 = 0x2000_0000;

// An entry: the kind of an element, and its length, or every 32 entries its end.
const OFFSET_OR_LENGTH: u32 = 0x0FFF_FFFF;
const HAS_OFFSET: u32 = 0x8000_0000;
const KIND: u32 = 0x7000_0000;
const STRING: u32 = 0x0000_0000;
const NUMERIC: u32 = 0x1000_0000;
const FALSE: u32 = 0x2000_0000;
const TRUE: u32 = 0x3000_0000;
const NULL: u32 = 0x4000_0000;
const CONTAINER: u32 = 0x5000_0000;

/// Size of a header word and of an entry; what numbers and containers are aligned to (INTALIGN).
const WORD: usize = 4;

/// More than this is not kept from value to value: ten thousand idle tables must not hold memory.
const KEPT_BYTES: usize = 64 << 10;

/// A jsonb column, kept as text.
pub(super) struct Jsonb {
    values: Strings,
    encoding: Encoding,
    writer: Writer,
}

impl Jsonb {
    pub fn new(encoding: Encoding) -> Self {
        Jsonb {
            values: Strings::new(),
            encoding,
            writer: Writer::default(),
        }
    }
}

impl Column for Jsonb {
    unsafe fn append(&mut self, datum: Datum) -> Result<usize, Fault> {
        self.writer.text.clear();
        // SAFETY: the caller vouches for the datum and the memory context.
        unsafe {
            let stored = varlena::payload(datum);
            self.writer.write(stored).ok_or(Fault::Jsonb)?;
            let taken = self.encoding.push(&self.writer.text, &mut self.values);
            if self.writer.text.capacity() > KEPT_BYTES {
                self.writer = Writer::default();
            }
            taken
        }
    }

    fn append_null(&mut self) -> usize {
        self.values.push_null()
    }

    fn truncate(&mut self, rows: usize) {
        self.values.truncate(rows);
    }

    fn take(&mut self) -> ArrayRef {
        self.writer = Writer::default();
        self.values.take()
    }
}

/// Writes values one by one; both vectors are used again.
#[derive(Default)]
struct Writer {
    /// In the database's encoding.
    text: Vec<u8>,
    /// Containers that are being written. Not the call stack: a value can be nested deeper than that
    /// allows.
    open: Vec<Container>,
}

/// A container of a value, by places in the value's bytes.
struct Container {
    object: bool,
    /// Elements, or pairs.
    count: usize,
    /// How many of them have been written.
    written: usize,
    /// The elements of an array; the values of an object, which come after all keys.
    elements: Elements,
    /// The keys of an object.
    keys: Elements,
}

/// Elements that follow each other, from some entry of a container on.
#[derive(Clone, Copy)]
struct Elements {
    /// Place of the next entry.
    entry: usize,
    /// Where the bytes of all of the container's elements begin, behind all entries.
    data: usize,
    /// Where the next element's bytes begin, from `data`.
    offset: usize,
}

/// An element's kind, and its bytes by place.
struct Element {
    kind: u32,
    start: usize,
    end: usize,
}

impl Container {
    /// The container whose header is at this place.
    fn at(stored: &[u8], place: usize) -> Option<Container> {
        let header = word(stored, place)?;
        let object = header & IS_OBJECT != 0;
        let count = (header & COUNT) as usize;
        let entry = place + WORD;
        let entries = if object { 2 * count } else { count };
        let keys = Elements {
            entry,
            data: entry + entries * WORD,
            offset: 0,
        };
        let mut elements = keys;
        if object {
            elements.entry = entry + count * WORD;
            elements.offset = end_of_entry(stored, entry, count)?;
        }
        Some(Container {
            object,
            count,
            written: 0,
            elements,
            keys,
        })
    }
}

/// Where the bytes of the first `count` elements end (jsonb_util.c `getJsonbOffset`).
fn end_of_entry(stored: &[u8], entries: usize, count: usize) -> Option<usize> {
    let mut end = 0;
    for at in (0..count).rev() {
        let entry = word(stored, entries + at * WORD)?;
        end += (entry & OFFSET_OR_LENGTH) as usize;
        if entry & HAS_OFFSET != 0 {
            break;
        }
    }
    Some(end)
}

impl Elements {
    fn next(&mut self, stored: &[u8]) -> Option<Element> {
        let entry = word(stored, self.entry)?;
        let given = (entry & OFFSET_OR_LENGTH) as usize;
        let end = match entry & HAS_OFFSET {
            0 => self.offset + given,
            _ => given,
        };
        let element = Element {
            kind: entry & KIND,
            start: self.data + self.offset,
            end: self.data + end,
        };
        (self.entry, self.offset) = (self.entry + WORD, end);
        Some(element)
    }
}

impl Writer {
    /// Appends a value's text. `None`: these bytes are no jsonb.
    fn write(&mut self, stored: &[u8]) -> Option<()> {
        self.open.clear();
        let mut root = Container::at(stored, 0)?;
        if word(stored, 0)? & IS_SCALAR != 0 {
            let element = root.elements.next(stored)?;
            return self.write_element(stored, &element);
        }
        self.begin(root);
        while let Some(top) = self.open.last_mut() {
            if top.written == top.count {
                self.text.push(if top.object { b'}' } else { b']' });
                self.open.pop();
                continue;
            }
            if top.written > 0 {
                self.text.extend_from_slice(b", ");
            }
            top.written += 1;
            let element = top.elements.next(stored)?;
            if top.object {
                let key = top.keys.next(stored)?;
                write_string(stored.get(key.start..key.end)?, &mut self.text);
                self.text.extend_from_slice(b": ");
            }
            self.write_element(stored, &element)?;
        }
        Some(())
    }

    fn begin(&mut self, container: Container) {
        self.text.push(if container.object { b'{' } else { b'[' });
        self.open.push(container);
    }

    /// Appends a scalar, or the beginning of a container.
    fn write_element(&mut self, stored: &[u8], element: &Element) -> Option<()> {
        let aligned = element.start.next_multiple_of(WORD);
        match element.kind {
            STRING => write_string(stored.get(element.start..element.end)?, &mut self.text),
            NUMERIC => {
                let number = varlena::embedded(stored.get(aligned..element.end)?)?;
                numeric_text::write(&Numeric::parse(number)?, &mut self.text);
            }
            FALSE => self.text.extend_from_slice(b"false"),
            TRUE => self.text.extend_from_slice(b"true"),
            NULL => self.text.extend_from_slice(b"null"),
            CONTAINER => self.begin(Container::at(stored, aligned)?),
            _ => return None,
        }
        Some(())
    }
}

fn word(stored: &[u8], place: usize) -> Option<u32> {
    let bytes = stored.get(place..)?.first_chunk::<WORD>()?;
    Some(u32::from_ne_bytes(*bytes))
}

/// What json.c `escape_json` does, many ordinary characters at a time.
fn write_string(mut bytes: &[u8], text: &mut Vec<u8>) {
    text.push(b'"');
    while let Some(at) = special(bytes) {
        text.extend_from_slice(&bytes[..at]);
        match bytes[at] {
            0x08 => text.extend_from_slice(b"\\b"),
            0x0C => text.extend_from_slice(b"\\f"),
            b'\n' => text.extend_from_slice(b"\\n"),
            b'\r' => text.extend_from_slice(b"\\r"),
            b'\t' => text.extend_from_slice(b"\\t"),
            byte @ (b'"' | b'\\') => text.extend_from_slice(&[b'\\', byte]),
            byte => text.extend_from_slice(format!("\\u{byte:04x}").as_bytes()),
        }
        bytes = &bytes[at + 1..];
    }
    text.extend_from_slice(bytes);
    text.push(b'"');
}

/// The first character that is not written as it is.
fn special(bytes: &[u8]) -> Option<usize> {
    /// As many as a vector register of any 64-bit machine holds.
    const LANES: usize = 16;
    let is_special = |byte: &u8| *byte < b' ' || *byte == b'"' || *byte == b'\\';
    let (chunks, rest) = bytes.as_chunks::<LANES>();
    for (number, chunk) in chunks.iter().enumerate() {
        // Without a branch for each, the compiler looks at all of them at once.
        if chunk.iter().fold(false, |any, byte| any | is_special(byte)) {
            let at = chunk.iter().position(is_special)?;
            return Some(number * LANES + at);
        }
    }
    let at = rest.iter().position(is_special)?;
    Some(bytes.len() - rest.len() + at)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A numeric of one digit of base 10000, as in a jsonb: with a length word of four bytes.
    fn seven() -> Vec<u8> {
        let number = super::super::numeric::stored::short(false, 0, 0, &[7]);
        let length =
            ((number.len() + WORD) as u32) << if cfg!(target_endian = "little") { 2 } else { 0 };
        [length.to_ne_bytes().to_vec(), number].concat()
    }

    fn text(words: &[u32], data: &[u8]) -> Option<String> {
        let mut writer = Writer::default();
        let words = words.iter().flat_map(|word| word.to_ne_bytes());
        let stored: Vec<u8> = words.chain(data.iter().copied()).collect();
        writer.write(&stored)?;
        Some(String::from_utf8(writer.text).unwrap())
    }

    const IS_ARRAY: u32 = 0x4000_0000;

    #[test]
    fn scalars() {
        let scalar = IS_ARRAY | IS_SCALAR | 1;
        assert_eq!(text(&[scalar, NULL], b"").unwrap(), "null");
        assert_eq!(text(&[scalar, TRUE], b"").unwrap(), "true");
        assert_eq!(text(&[scalar, FALSE], b"").unwrap(), "false");
        assert_eq!(text(&[scalar, 2], b"ab").unwrap(), "\"ab\"");
        let number = seven();
        assert_eq!(
            text(&[scalar, NUMERIC | number.len() as u32], &number).unwrap(),
            "7"
        );
    }

    #[test]
    fn containers() {
        assert_eq!(text(&[IS_ARRAY], b"").unwrap(), "[]");
        assert_eq!(text(&[IS_OBJECT], b"").unwrap(), "{}");
        // {"a": 7, "b": []}: keys first, then values, which are aligned.
        let number = seven();
        let data = [b"ab\0\0".as_slice(), &number, &IS_ARRAY.to_ne_bytes()].concat();
        let length = number.len() as u32 + 2;
        let padding = (number.len().next_multiple_of(WORD) - number.len()) as u32;
        assert_eq!(padding, 0);
        let words = [
            IS_OBJECT | 2,
            1,
            1,
            NUMERIC | length,
            CONTAINER | WORD as u32,
        ];
        assert_eq!(text(&words, &data).unwrap(), "{\"a\": 7, \"b\": []}");
        // An entry can say where it ends instead.
        let words = [
            IS_OBJECT | 2,
            1,
            HAS_OFFSET | 2,
            NUMERIC | length,
            HAS_OFFSET | CONTAINER | 16,
        ];
        assert_eq!(text(&words, &data).unwrap(), "{\"a\": 7, \"b\": []}");
    }

    #[test]
    fn nested_deeper_than_any_stack() {
        const DEPTH: usize = 200_000;
        let mut words = Vec::new();
        for level in (1..DEPTH).rev() {
            words.extend([
                IS_ARRAY | 1,
                CONTAINER | (level * 2 * WORD) as u32 & OFFSET_OR_LENGTH,
            ]);
        }
        words.push(IS_ARRAY);
        let written = text(&words, b"").unwrap();
        assert_eq!(written, "[".repeat(DEPTH) + &"]".repeat(DEPTH));
    }

    #[test]
    fn strings_are_escaped_as_the_server_does() {
        let mut out = Vec::new();
        write_string("a\"\\\u{8}\u{c}\n\r\t\u{1}\u{7f}é/".as_bytes(), &mut out);
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "\"a\\\"\\\\\\b\\f\\n\\r\\t\\u0001\u{7f}é/\""
        );
    }

    #[test]
    fn a_special_character_is_found_wherever_it_is() {
        for length in 0..50 {
            let mut bytes = vec![b'x'; length];
            assert_eq!(special(&bytes), None);
            for at in (0..length).rev() {
                bytes[at] = b'\n';
                assert_eq!(special(&bytes), Some(at), "of {length}");
            }
        }
    }

    #[test]
    fn what_is_no_jsonb_is_told() {
        let scalar = IS_ARRAY | IS_SCALAR | 1;
        for words in [
            &[][..],
            &[scalar],
            &[scalar, 2],
            &[scalar, 0x6000_0000],
            &[IS_OBJECT | 1, 1],
        ] {
            assert_eq!(text(words, b""), None, "{words:x?}");
        }
        assert_eq!(text(&[scalar, NUMERIC | 3], b"abc"), None);
        assert_eq!(
            text(
                &[scalar, NUMERIC | 8],
                &[0xFC, 0xFF, 0xFF, 0xFF, 0, 0, 0, 0]
            ),
            None
        );
    }
}
