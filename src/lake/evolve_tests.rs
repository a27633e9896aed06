use super::*;
use crate::lake::types::DeltaType::{self, Integer, Long, String as Text};

fn table(fields: &[(u32, &str, DeltaType, bool)]) -> HistorySchema {
    let field = |(number, name, data_type, nullable): &(u32, &str, DeltaType, bool)| Field {
        name: (*name).to_owned(),
        data_type: *data_type,
        nullable: *nullable,
        number: Some(*number),
        added: false,
        output: None,
    };
    HistorySchema::new(fields.iter().map(field).collect()).unwrap()
}

fn columns(schema: &HistorySchema) -> Vec<(String, DeltaType, bool)> {
    let source = schema.source().iter();
    source
        .map(|field| (field.name.clone(), field.data_type, field.nullable))
        .collect()
}

fn column(name: &str, data_type: DeltaType, nullable: bool) -> (String, DeltaType, bool) {
    (name.to_owned(), data_type, nullable)
}

fn base() -> HistorySchema {
    table(&[
        (1, "id", Long, false),
        (2, "a", Integer, false),
        (3, "b", Text, true),
    ])
}

#[test]
fn nothing_changes() {
    let evolved = base().evolve(&base());
    assert_eq!(evolved.schema, base());
    assert!(!evolved.retyped && !evolved.schema.is_mapped());
    assert!(base().holds(&base()));
}

#[test]
fn added_columns_come_last_and_are_nullable() {
    let rows = table(&[
        (1, "id", Long, false),
        (2, "a", Integer, false),
        (3, "b", Text, true),
        (4, "c", Integer, false),
    ]);
    let evolved = base().evolve(&rows).schema;
    assert_eq!(columns(&evolved)[3], column("c", Integer, true));
    assert!(evolved.source()[3].added && !evolved.source()[0].added);
    assert!(!evolved.written_anew().source()[3].added);
    assert!(!evolved.is_mapped());
    assert!(!base().holds(&rows) && evolved.holds(&rows));
}

#[test]
fn dropped_columns_stay_and_are_nullable() {
    let rows = table(&[(1, "id", Long, false), (3, "b", Text, true)]);
    let evolved = base().evolve(&rows);
    assert!(!evolved.retyped);
    assert_eq!(
        columns(&evolved.schema),
        [
            column("id", Long, false),
            column("a", Integer, true),
            column("b", Text, true)
        ]
    );
    assert!(evolved.schema.holds(&rows));
    let file = evolved.schema.project(&rows).unwrap();
    assert_eq!(file.physical_names()[..2], ["id", "b"]);
}

#[test]
fn renamed_columns_keep_their_place_in_files() {
    let rows = table(&[
        (1, "id", Long, false),
        (2, "b", Integer, false),
        (3, "a", Text, true),
    ]);
    let evolved = base().evolve(&rows).schema;
    assert!(evolved.is_mapped());
    assert_eq!(
        evolved.physical_names()[..4],
        ["id", "a", "b", "_pg_change_type"]
    );
    assert_eq!(columns(&evolved)[1], column("b", Integer, false));
    let file = evolved.project(&rows).unwrap();
    assert_eq!(file.physical_names(), evolved.physical_names());
    // Once mapped, new columns get names that no other ever had.
    let more = table(&[
        (1, "id", Long, false),
        (2, "b", Integer, false),
        (5, "x", Text, true),
    ]);
    let twice = evolved.evolve(&more).schema;
    assert_eq!(columns(&twice)[2], column("a", Text, true));
    assert_eq!(twice.physical_names()[3], "col-9");
    assert_eq!(twice.max_column_id(), Some(9));
    assert_eq!(twice.physical_names()[4], "_pg_change_type");
}

#[test]
fn a_retyped_column_is_another_one() {
    let rows = table(&[
        (1, "id", Long, false),
        (2, "a", Long, false),
        (3, "b", Text, true),
    ]);
    let evolved = base().evolve(&rows);
    assert!(evolved.retyped);
    assert_eq!(
        columns(&evolved.schema),
        [
            column("id", Long, false),
            column("a_old", Integer, true),
            column("b", Text, true),
            column("a", Long, true),
        ]
    );
    let again = evolved.schema.evolve(&rows);
    assert!(!again.retyped && again.schema == evolved.schema);
    // Back to what it was: a third one.
    let back = evolved.schema.evolve(&base());
    assert!(back.retyped);
    let names: Vec<&str> = back
        .schema
        .source()
        .iter()
        .map(|field| &*field.name)
        .collect();
    assert_eq!(names, ["id", "a_old", "b", "a_old_2", "a"]);
}

#[test]
fn the_name_of_a_dropped_column_is_given_to_another() {
    let without = table(&[(1, "id", Long, false), (3, "b", Text, true)]);
    let again = table(&[
        (1, "id", Long, false),
        (3, "b", Text, true),
        (4, "A", Integer, true),
    ]);
    let evolved = base().evolve(&without).schema.evolve(&again);
    assert!(!evolved.retyped);
    assert_eq!(
        columns(&evolved.schema),
        [
            column("id", Long, false),
            column("a_old", Integer, true),
            column("b", Text, true),
            column("A", Integer, true),
        ]
    );
}

#[test]
fn a_name_that_needs_mapping() {
    let rows = table(&[
        (1, "id", Long, false),
        (2, "a", Integer, false),
        (9, "b c", Text, true),
    ]);
    let evolved = base().evolve(&rows).schema;
    assert_eq!(evolved.physical_names()[..4], ["id", "a", "b", "col-9"]);
    let read = HistorySchema::from_delta_json(&evolved.to_delta_json()).unwrap();
    assert_eq!(read, evolved);
    assert_eq!(read.physical_names(), evolved.physical_names());
}

#[test]
fn a_file_has_no_column_that_the_table_lacks() {
    let rows = table(&[(1, "id", Long, false), (7, "new", Text, true)]);
    assert!(base().project(&rows).is_none());
    let other = table(&[(1, "id", Integer, false)]);
    assert!(base().project(&other).is_none());
}

#[test]
fn what_prints_otherwise_is_written_anew() {
    let printed = |output| {
        let mut fields = base().source().to_vec();
        fields[2].output = output;
        HistorySchema::new(fields).unwrap()
    };
    let evolved = printed(Some(650)).evolve(&printed(Some(869)));
    assert!(evolved.retyped);
    assert_eq!(evolved.schema, printed(Some(869)));
    assert!(!printed(Some(650)).holds(&printed(Some(869))));
    assert!(!base().evolve(&base()).retyped);
}

#[test]
fn physical_names_are_given_once() {
    let odd = table(&[
        (1, "id", Long, false),
        (2, "COL-9", Integer, true),
        (3, "n", Text, true),
    ]);
    let renamed = table(&[
        (1, "id", Long, false),
        (2, "COL-9", Integer, true),
        (3, "m", Text, true),
    ]);
    let mapped = odd.evolve(&renamed).schema;
    assert_eq!(mapped.max_column_id(), Some(8));
    let added = table(&[
        (1, "id", Long, false),
        (2, "COL-9", Integer, true),
        (3, "m", Text, true),
        (4, "x", Text, true),
    ]);
    // Whichever way the column comes.
    for next in [mapped.evolve(&added).schema, added.adopt(&mapped)] {
        assert_eq!(next.physical_names()[3], "col-9_");
    }
}
