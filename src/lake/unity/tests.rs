//! What is said to a catalog, and understood of it, without one.

use reqwest::StatusCode;
use serde_json::{Value, json};

use crate::lake::error::ErrorKind;
use crate::lake::schema::{Field, HistorySchema};
use crate::lake::source::Source;
use crate::lake::types::DeltaType;
use crate::lake::unity::Catalog;
use crate::lake::unity::answer::Answer;
use crate::lake::unity::entry::{Comments, Entry, Registered};

fn catalog(address: &str) -> Catalog {
    Catalog::new(address, ("main", "bronze"), Some("dapi-hunter2"), None).unwrap()
}

fn entry(folder: &str, comments: &str) -> Entry {
    let field = |name: &str, data_type, number| Field {
        name: name.to_owned(),
        data_type,
        nullable: true,
        number: Some(number),
        added: false,
        output: None,
    };
    let price = DeltaType::Decimal {
        precision: 10,
        scale: 2,
    };
    let schema = HistorySchema::new(vec![
        field("id", DeltaType::Long, 1),
        field("price", price, 3),
    ]);
    let source = Source {
        system: 7,
        database: 5,
        table: 16384,
    };
    let comments = Comments::new("orders".to_owned(), comments);
    let location = format!("s3://b/x/{folder}");
    Entry::new(folder, location, &source, &schema.unwrap(), &comments)
}

/// As a server shows what was registered.
fn shown(entry: &Entry) -> Value {
    json!({
        "table_id": "1",
        "storage_location": entry.location,
        "comment": entry.comment,
        "properties": entry.properties,
        "columns": entry.columns(),
    })
}

#[test]
fn names_are_such_as_catalogs_take() {
    let name = |folder: &str| entry(folder, "").name;
    assert_eq!(name("lb_orders_history"), "lb_orders_history");
    let upper = name("lb_Orders_history");
    assert!(upper.starts_with("lb_orders_history_"), "{upper}");
    assert_ne!(upper, name("lb_ORDERS_history"));
    let odd = name("lb_Übung 1.x_history");
    assert!(odd.starts_with("lb__bung_1_x_history_"), "{odd}");
    let long = name(&format!("lb_{}_history", "Ä".repeat(300)));
    assert_eq!(long.len(), 255);
}

#[test]
fn the_address_may_have_the_version_in_it() {
    for address in [
        "http://h:8080",
        "http://h:8080/",
        "http://h:8080/api/2.1/unity-catalog",
        "http://h:8080/api/2.1/unity-catalog/",
    ] {
        let base = catalog(address).base;
        assert_eq!(base.as_str(), "http://h:8080/api/2.1/unity-catalog");
    }
    let below = catalog("https://h/proxy").base;
    assert_eq!(below.as_str(), "https://h/proxy/api/2.1/unity-catalog");
    let text = catalog("http://h:8080").to_string();
    assert_eq!(
        text,
        "schema \"main.bronze\" of the catalog at http://h:8080"
    );
}

#[test]
fn comments_belong_to_numbers_of_columns() {
    let entry = entry("lb_orders_history", r#"{"0": "All orders", "3": "Net"}"#);
    assert_eq!(entry.comment, "All orders");
    let columns = entry.columns();
    assert_eq!(columns[0].get("comment"), None);
    assert_eq!(columns[1]["comment"], "Net");
    assert_eq!(columns[1]["type_text"], "decimal(10,2)");
    assert_eq!(columns[1]["type_precision"], 10);
    assert!(
        columns[6]["comment"]
            .as_str()
            .unwrap()
            .contains("never repeats")
    );
    assert_eq!(entry.properties["wal2delta.source"], "7/5/16384");
}

#[test]
fn an_entry_that_says_the_same_is_left_alone() {
    let wanted = entry("lb_orders_history", r#"{"3": "Net"}"#);
    let same = shown(&wanted);
    assert!(Registered::read(same.clone()).shows(&wanted));
    // As servers have it after an update: Delta's JSON has it all, other fields are their own.
    let mut other = same.clone();
    other["columns"][0]["type_text"] = json!("long");
    other["columns"][1]["comment"] = Value::Null;
    other["properties"]["more"] = json!("of the server's");
    assert!(Registered::read(other).shows(&wanted));
    // And without it.
    let mut other = same.clone();
    for column in other["columns"].as_array_mut().unwrap() {
        column["type_json"] = Value::Null;
    }
    assert!(Registered::read(other).shows(&wanted));
    for (change, to) in [
        ("/comment", json!("other")),
        ("/properties/wal2delta.source", json!("7/5/1")),
        ("/columns/0/name", json!("other")),
        ("/columns/1/type_json", json!("{\"type\": \"long\"}")),
        ("/columns", json!([])),
    ] {
        let mut other = same.clone();
        *other.pointer_mut(change).unwrap() = to;
        assert!(!Registered::read(other).shows(&wanted), "{change}");
    }
}

#[test]
fn a_place_is_the_same_in_all_its_forms() {
    let at = |url: &str| Registered::read(json!({"storage_location": url}));
    assert!(at("s3a://b/x/").is_at("s3://b/x"));
    assert!(at("file:/data/x").is_at("file:///data/x"));
    assert!(!at("s3://b/y").is_at("s3://b/x"));
    assert!(!Registered::read(json!({})).is_at("s3://b/x"));
}

#[test]
fn refusals_have_remedies_and_no_token() {
    let catalog = catalog("http://h");
    let body = br#"{"error_code": "X", "message": "not you, Bearer dapi-hunter2"}"#;
    for (status, kind, hint) in [
        (401, ErrorKind::Denied, "SET catalog_token"),
        (403, ErrorKind::Denied, "CREATE EXTERNAL TABLE"),
        (404, ErrorKind::Missing, "main.bronze"),
        (400, ErrorKind::Config, "external location"),
        (301, ErrorKind::Config, "catalog_url"),
        (409, ErrorKind::Transient, ""),
        (503, ErrorKind::Transient, ""),
    ] {
        let status = StatusCode::from_u16(status).unwrap();
        let answer = Answer::new(status, body);
        let error = answer.ok(&catalog, "could not ask").unwrap_err();
        assert_eq!(error.kind(), kind, "{error:?}");
        assert!(error.hint().unwrap_or_default().contains(hint), "{error:?}");
        let text = format!("{error:?} {catalog:?}");
        assert!(
            text.contains("X: not you") && !text.contains("hunter2"),
            "{text}"
        );
    }
    let delta = br#"{"error": {"message": "gone", "type": "NoSuchTableException", "code": 404}}"#;
    let error = Answer::new(StatusCode::BAD_REQUEST, delta).ok(&catalog, "could not ask");
    assert!(
        error
            .unwrap_err()
            .to_string()
            .contains("NoSuchTableException: gone")
    );
    assert!(!Answer::new(StatusCode::NOT_FOUND, b"<html>").is_told());
}
