use super::*;
use crate::lake::types::ALL_TYPES;

fn field(name: &str, data_type: DeltaType) -> Field {
    Field {
        name: name.to_owned(),
        data_type,
        nullable: true,
        number: None,
        added: false,
        output: None,
    }
}

fn schema(names: &[&str]) -> HistorySchema {
    HistorySchema::new(
        names
            .iter()
            .map(|name| field(name, DeltaType::Long))
            .collect(),
    )
    .unwrap()
}

#[test]
fn every_type_comes_back_from_delta_json() {
    let fields = ALL_TYPES.iter().enumerate();
    let fields = fields.map(|(i, t)| Field {
        nullable: i % 2 == 0,
        number: None,
        added: false,
        output: None,
        ..field(&format!("c{i}"), *t)
    });
    let written = HistorySchema::new(fields.collect()).unwrap();
    let read = HistorySchema::from_delta_json(&written.to_delta_json()).unwrap();
    assert_eq!(read, written);
    assert!(!read.is_mapped());
    assert_eq!(read.arrow(), written.arrow());
    assert_eq!(
        HistorySchema::from_arrow(&written.arrow()).unwrap(),
        written
    );
}

#[test]
fn a_mapped_schema_keeps_ids_and_physical_names() {
    let written = schema(&["a b", "x,y", "ünï"]);
    assert!(written.needs_column_mapping());
    let read = HistorySchema::from_delta_json(&written.to_delta_json()).unwrap();
    assert_eq!(read, written);
    assert_eq!(read.mapping, written.mapping);

    let read = read.with_max_column_id(20);
    let next = schema(&["x,y", "new", "a b"]).adopt(&read);
    let physical = next.physical_names();
    assert_eq!(physical[..3], ["col-2", "col-21", "col-1"]);
    assert_eq!(physical[3..], read.physical_names()[3..]);
    assert_eq!(next.max_column_id(), Some(21));
    assert_ne!(next.layout(), schema(&["x,y", "new", "a b"]).layout());
    // Once mapped, a table stays mapped: readers of older versions need the names.
    assert!(schema(&["plain"]).adopt(&next).is_mapped());
    assert!(!schema(&["plain"]).adopt(&schema(&["other"])).is_mapped());
    assert!(schema(&["a b"]).adopt(&schema(&["other"])).is_mapped());
}

#[test]
fn clashing_names_are_refused_with_what_to_rename() {
    let refuse = |names: &[&str]| {
        HistorySchema::new(names.iter().map(|n| field(n, DeltaType::Long)).collect()).unwrap_err()
    };
    let error = refuse(&["id", "_PG_LSN"]);
    assert!(error.to_string().contains("\"_PG_LSN\"") && error.to_string().contains("rename"));
    let error = refuse(&["Ä", "b", "ä"]);
    assert!(error.to_string().contains("\"Ä\" and \"ä\""));
}

#[test]
fn foreign_schemas_are_not_history() {
    let foreign =
        r#"{"type":"struct","fields":[{"name":"a","type":"long","nullable":true,"metadata":{}}]}"#;
    assert!(matches!(
        HistorySchema::from_delta_json(foreign),
        Err(SchemaError::NotHistory(_))
    ));
    assert!(HistorySchema::from_delta_json("{").is_err());
    let nested = schema(&["a"])
        .to_delta_json()
        .replacen("\"long\"", "{\"type\":\"array\"}", 1);
    assert!(HistorySchema::from_delta_json(&nested).is_err());
}

#[test]
fn statistics_cover_29_source_columns_and_three_system_columns() {
    let names: Vec<String> = (0..40).map(|i| format!("c{i}")).collect();
    let mut fields: Vec<Field> = names.iter().map(|n| field(n, DeltaType::Long)).collect();
    fields[0].data_type = DeltaType::Binary;
    fields[1].name = "we\"ird".to_owned();
    let schema = HistorySchema::new(fields).unwrap();
    let columns = schema.skipping_columns();
    assert_eq!(columns.len(), 32);
    assert_eq!(
        (columns[0], columns[28], columns[29..].to_vec()),
        (1, 29, vec![41, 43, 44])
    );
    let property = schema.skipping_property();
    assert!(property.starts_with("c2,c3,"));
    assert!(property.ends_with(",c29,_pg_lsn,_timestamp,_sort_by"));
}

#[test]
fn a_field_is_serialised_with_the_delta_name_of_its_type() {
    let one = field(
        "a",
        DeltaType::Decimal {
            precision: 12,
            scale: 2,
        },
    );
    let text = serde_json::to_string(&one).unwrap();
    assert!(text.contains("\"decimal(12,2)\""));
    assert_eq!(serde_json::from_str::<Field>(&text).unwrap(), one);
}
