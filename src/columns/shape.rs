//! A relation's columns as of one point in the WAL. Names and types come from the tuple
//! descriptor of that moment, never from what the catalog says now.

use std::ffi::{CStr, CString};

use pgrx::pg_sys;

use super::encoding::Encoding;
use super::error::ColumnError;
use super::kind::Kind;
use crate::lake::Field;

/// A relation's columns as of one point in the WAL: what its tuple descriptor said then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// By attribute number less one; `None` is a dropped column, which stays in the descriptor.
    attributes: Vec<Option<SourceColumn>>,
}

/// Where a shape's columns are in the tuples of a relation that has the same columns in another order,
/// or among others that were dropped: a partition of the table that the shape is of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Attributes of a tuple, dropped ones included.
    pub(super) natts: usize,
    /// For each live column of the shape its place (attribute number less one).
    pub(super) places: Vec<usize>,
}

/// One live column of the source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceColumn {
    name: String,
    /// The name as the catalog has it, in the database's encoding.
    attname: CString,
    typid: pg_sys::Oid,
    typmod: i32,
    not_null: bool,
    /// Stored with a length word, so that its value may be elsewhere.
    varlena: bool,
    kind: Kind,
}

impl SourceColumn {
    /// The column's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its type as declared, which may be a domain.
    pub fn typid(&self) -> pg_sys::Oid {
        self.typid
    }

    /// Its type modifier as declared.
    pub fn typmod(&self) -> i32 {
        self.typmod
    }

    /// Is it declared NOT NULL?
    pub fn not_null(&self) -> bool {
        self.not_null
    }

    pub(super) fn is_varlena(&self) -> bool {
        self.varlena
    }

    pub(super) fn kind(&self) -> Kind {
        self.kind
    }

    /// The column in the history table; `at`: its place in the descriptor.
    fn field(&self, at: usize) -> Field {
        Field {
            number: u32::try_from(at + 1).ok(),
            added: false,
            output: self.kind.output(),
            name: self.name.clone(),
            data_type: self.kind.delta_type(),
            // A domain's own NOT NULL does not count: outer joins and the like get past it.
            nullable: !self.not_null || self.kind.has_inexpressible_values(),
        }
    }
}

impl Shape {
    /// What the descriptor says.
    ///
    /// # Safety
    /// On the main thread; `tupdesc` is valid; catalog access is allowed (in a transaction, or
    /// under a decoding callback's historic snapshot), as domains are resolved to base types.
    pub unsafe fn from_tupdesc(tupdesc: pg_sys::TupleDesc) -> Shape {
        // SAFETY: as the caller vouches; attname holds its NUL.
        unsafe {
            let encoding = Encoding::of_database();
            let column = |attribute: &pg_sys::FormData_pg_attribute| {
                let attname = CStr::from_ptr(attribute.attname.data.as_ptr());
                SourceColumn {
                    name: encoding.to_string(attname.to_bytes()),
                    attname: attname.to_owned(),
                    typid: attribute.atttypid,
                    typmod: attribute.atttypmod,
                    not_null: attribute.attnotnull,
                    varlena: attribute.attlen == -1,
                    kind: Kind::of(attribute.atttypid, attribute.atttypmod),
                }
            };
            let attributes = attributes(tupdesc).iter();
            Shape {
                attributes: attributes
                    .map(|a| (!a.attisdropped).then(|| column(a)))
                    .collect(),
            }
        }
    }

    /// Does the descriptor still say what this shape does, in all that matters for the history?
    /// Without catalog access, so cheap enough for every change.
    ///
    /// # Safety
    /// `tupdesc` is valid.
    pub unsafe fn matches(&self, tupdesc: pg_sys::TupleDesc) -> bool {
        // SAFETY: as the caller vouches.
        let attributes = unsafe { attributes(tupdesc) };
        self.attributes.len() == attributes.len()
            && self
                .attributes
                .iter()
                .zip(attributes)
                .all(|(column, attribute)| match column {
                    None => attribute.attisdropped,
                    Some(column) => {
                        !attribute.attisdropped
                        && column.typid == attribute.atttypid
                        && column.typmod == attribute.atttypmod
                        && column.not_null == attribute.attnotnull
                        // SAFETY: attname holds its NUL.
                        && column.attname.as_c_str()
                            == unsafe { CStr::from_ptr(attribute.attname.data.as_ptr()) }
                    }
                })
    }

    /// Where the columns are in tuples of another relation, found by name; `None`: where they are here.
    ///
    /// # Errors
    /// [`ColumnError::NoColumn`] if it lacks a column, or has it with another type.
    ///
    /// # Safety
    /// `tupdesc` is valid.
    pub unsafe fn layout(&self, tupdesc: pg_sys::TupleDesc) -> Result<Option<Layout>, ColumnError> {
        // SAFETY: as the caller vouches.
        let attributes = unsafe { attributes(tupdesc) };
        let place = |column: &SourceColumn| {
            attributes
                .iter()
                .position(|attribute| {
                    !attribute.attisdropped
                        && attribute.atttypid == column.typid
                        // SAFETY: attname holds its NUL.
                        && unsafe { CStr::from_ptr(attribute.attname.data.as_ptr()) }
                            == column.attname.as_c_str()
                })
                .ok_or_else(|| ColumnError::NoColumn(column.name.clone()))
        };
        let places = self
            .columns()
            .map(|(_, column)| place(column))
            .collect::<Result<Vec<_>, _>>()?;
        let natts = attributes.len();
        let own = self.columns().map(|(at, _)| at);
        let alike = natts == self.natts() && places.iter().copied().eq(own);
        Ok((!alike).then_some(Layout { natts, places }))
    }

    /// The history table's source columns: live ones in attribute order, stored generated ones
    /// among them.
    pub fn fields(&self) -> Vec<Field> {
        self.columns()
            .map(|(at, column)| column.field(at))
            .collect()
    }

    /// Attributes of the descriptor, dropped ones included.
    pub fn natts(&self) -> usize {
        self.attributes.len()
    }

    /// Live columns, each with its place in the descriptor (attribute number less one).
    pub fn columns(&self) -> impl Iterator<Item = (usize, &SourceColumn)> {
        let attributes = self.attributes.iter().enumerate();
        attributes.filter_map(|(at, column)| Some((at, column.as_ref()?)))
    }
}

/// # Safety
/// `tupdesc` is valid as long as `'a`.
unsafe fn attributes<'a>(tupdesc: pg_sys::TupleDesc) -> &'a [pg_sys::FormData_pg_attribute] {
    // SAFETY: as the caller vouches; attrs are natts structs in a row (tupdesc.h of 17).
    unsafe { (*tupdesc).attrs.as_slice((*tupdesc).natts as usize) }
}
