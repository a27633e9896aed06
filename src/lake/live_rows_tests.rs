use std::time::Duration;

use arrow::array::{
    BinaryArray, Date32Array, Decimal128Array, Float32Array, Float64Array, Int16Array, Int32Array,
    Int64Array, TimestampMicrosecondArray,
};
use arrow::util::display::{ArrayFormatter, FormatOptions};
use bytes::Bytes;
use object_store::memory::InMemory;
use object_store::path::Path;
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_writer::ArrowWriterOptions;
use parquet::file::properties::{EnabledStatistics, WriterProperties};

use super::*;
use crate::lake::budget::Charged;
use crate::lake::error::ErrorKind;
use crate::lake::parquet::{EncodedFile, Encoder, ROW_GROUP_BYTES};
use crate::lake::schema::Field;
use crate::lake::tally::ENTRY_BYTES;
use crate::lake::types::{ALL_TYPES, DeltaType};

const ENOUGH: usize = 1 << 20;

/// A number stands for a value of each type.
type Row = Vec<Option<i64>>;

/// `true`: the row is added.
type Change = (bool, Row);

/// Xorshift: the same numbers in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) as usize % limit
    }

    fn row(&mut self, columns: usize) -> Row {
        let value = |_| self.below(4).checked_sub(1).map(|value| value as i64);
        (0..columns).map(value).collect()
    }
}

/// A history and the rows that are live after it. The few values make for equal rows.
fn random_history(seed: u64, columns: usize, steps: usize) -> (Vec<Change>, Vec<Row>) {
    let mut random = Random(seed);
    let mut live: Vec<Row> = Vec::new();
    let mut history = Vec::new();
    for _ in 0..steps {
        let step = random.below(10);
        if live.is_empty() || step < 4 {
            live.push(random.row(columns));
            history.extend(live.last().map(|row| (true, row.clone())));
            continue;
        }
        let at = random.below(live.len());
        let old = live.swap_remove(at);
        history.push((false, old.clone()));
        if step < 7 {
            // Some updates leave the row as it is.
            let new = if step == 6 { old } else { random.row(columns) };
            history.push((true, new.clone()));
            live.push(new);
        }
    }
    (history, live)
}

/// What must come out: of each kind the latest so many added rows.
fn expected(history: &[Change], identity: &[usize]) -> Vec<Row> {
    let kind = |row: &Row| -> Row { identity.iter().map(|index| row[*index]).collect() };
    let mut live = Vec::new();
    for (at, (added, row)) in history.iter().enumerate() {
        let same = |(_, other): &&Change| kind(other) == kind(row);
        let count = |added| {
            let all = history.iter().filter(same);
            all.filter(|change| change.0 == added).count()
        };
        let later = history[at + 1..].iter().filter(same);
        let later = later.filter(|(added, _)| *added).count();
        if *added && later < count(true) - count(false) {
            live.push(row.clone());
        }
    }
    live
}

fn array(data_type: DeltaType, values: &[Option<i64>]) -> ArrayRef {
    let bytes =
        |value: &Option<i64>| value.map(|value| "ü".repeat(usize::try_from(value).unwrap()));
    let double = |value: i64| [f64::NAN, -0.0, 0.0, 0.5][usize::try_from(value).unwrap() % 4];
    let values_of = values.iter().copied();
    match data_type {
        DeltaType::Boolean => Arc::new(BooleanArray::from_iter(
            values_of.map(|value| value.map(|value| value % 2 == 1)),
        )),
        DeltaType::Short => Arc::new(Int16Array::from_iter(
            values_of.map(|value| value.map(|value| value as i16)),
        )),
        DeltaType::Integer => Arc::new(Int32Array::from_iter(
            values_of.map(|value| value.map(|value| value as i32)),
        )),
        DeltaType::Long => Arc::new(Int64Array::from_iter(values_of)),
        DeltaType::Float => Arc::new(Float32Array::from_iter(
            values_of.map(|value| value.map(|value| double(value) as f32)),
        )),
        DeltaType::Double => Arc::new(Float64Array::from_iter(
            values_of.map(|value| value.map(double)),
        )),
        DeltaType::Decimal { scale, .. } => {
            let unit = 10_i128.pow(u32::from(scale));
            let values = values_of.map(|value| value.map(|value| i128::from(value) * unit));
            let values = Decimal128Array::from_iter(values);
            Arc::new(values.with_data_type(data_type.arrow()))
        }
        DeltaType::Date => Arc::new(Date32Array::from_iter(
            values_of.map(|value| value.map(|value| value as i32)),
        )),
        DeltaType::Timestamp | DeltaType::TimestampNtz => {
            let values = TimestampMicrosecondArray::from_iter(values_of);
            Arc::new(values.with_data_type(data_type.arrow()))
        }
        DeltaType::String => Arc::new(StringArray::from_iter(values.iter().map(bytes))),
        DeltaType::Binary => Arc::new(BinaryArray::from_iter(values.iter().map(bytes))),
    }
}

fn schema(fields: &[(&str, DeltaType)]) -> HistorySchema {
    let field = |(name, data_type): &(&str, DeltaType)| Field {
        name: (*name).to_owned(),
        data_type: *data_type,
        nullable: true,
        number: None,
        added: false,
        output: None,
    };
    HistorySchema::new(fields.iter().map(field).collect()).unwrap()
}

fn three() -> HistorySchema {
    schema(&[
        ("a.b", DeltaType::Long),
        ("note", DeltaType::String),
        ("price", DeltaType::Double),
    ])
}

fn source_columns(schema: &HistorySchema, rows: &[Row]) -> Vec<ArrayRef> {
    let columns = schema.source().iter().enumerate().map(|(index, field)| {
        let values: Vec<Option<i64>> = rows.iter().map(|row| row[index]).collect();
        array(field.data_type, &values)
    });
    columns.collect()
}

fn batch(schema: &HistorySchema, changes: &[Change], sort_by: i64) -> RecordBatch {
    let rows: Vec<Row> = changes.iter().map(|(_, row)| row.clone()).collect();
    let count = rows.len();
    let name = |(at, (added, _)): (usize, &Change)| match (added, at % 2) {
        (true, 0) => "insert",
        (true, _) => "update_postimage",
        (false, 0) => "delete",
        (false, _) => "update_preimage",
    };
    let names: Vec<&str> = changes.iter().enumerate().map(name).collect();
    let mut columns = source_columns(schema, &rows);
    columns.push(Arc::new(StringArray::from(names)));
    columns.push(Arc::new(Int64Array::from(vec![sort_by; count])));
    columns.push(Arc::new(Int32Array::from(vec![742; count])));
    columns.push(Arc::new(TimestampMicrosecondArray::from(vec![0; count])));
    let sort_by: Vec<i64> = (sort_by..).take(count).collect();
    columns.push(Arc::new(Int64Array::from(sort_by)));
    RecordBatch::try_new(schema.arrow(), columns).unwrap()
}

fn certain(columns: &[usize]) -> Identity {
    Identity {
        certain: columns.to_vec(),
        added: Vec::new(),
    }
}

/// A table being written.
struct History {
    store: Arc<InMemory>,
    budget: Arc<Budget>,
    files: Vec<ActiveFile>,
    sort_by: i64,
}

impl History {
    fn new() -> Self {
        History {
            store: Arc::default(),
            budget: Budget::new(ENOUGH),
            files: Vec::new(),
            sort_by: 100,
        }
    }

    async fn put(&mut self, content: Bytes) {
        let name = format!("part {}.parquet", self.files.len());
        let size = content.len() as u64;
        let path = Path::from(name.as_str());
        let store = Arc::clone(&self.store) as Arc<dyn object_store::ObjectStore>;
        let store = TableStore::new(store, "lb_t_history".to_owned(), Duration::ZERO);
        store.put_data(&path, content).await.unwrap();
        // In no order, and as the log has it.
        let path = name.replace(' ', "%20");
        let at = self.files.len() / 2;
        self.files.insert(at, ActiveFile { path, size });
    }

    async fn write(&mut self, schema: &HistorySchema, changes: &[Change]) {
        let batch = batch(schema, changes, self.sort_by);
        self.sort_by += changes.len() as i64;
        let charge = self.budget.charge(1);
        let charged = Charged {
            value: batch,
            charge,
        };
        self.put(encode(schema, charged).content).await;
    }

    /// As another program would: row groups of a few rows, no statistics.
    async fn write_plainly(&mut self, schema: &HistorySchema, changes: &[Change]) {
        let batch = batch(schema, changes, self.sort_by);
        self.sort_by += changes.len() as i64;
        let batch = RecordBatch::try_new(schema.parquet_arrow(), batch.columns().to_vec()).unwrap();
        let properties = WriterProperties::builder()
            .set_statistics_enabled(EnabledStatistics::None)
            .set_max_row_group_row_count(Some(10))
            .set_data_page_row_count_limit(3)
            .set_write_batch_size(1)
            .build();
        let options = ArrowWriterOptions::new().with_properties(properties);
        let mut writer =
            ArrowWriter::try_new_with_options(Vec::new(), batch.schema(), options).unwrap();
        writer.write(&batch).unwrap();
        self.put(Bytes::from(writer.into_inner().unwrap())).await;
    }

    async fn open(&self, schema: &HistorySchema, identity: &[usize], memory: usize) -> LiveRows {
        let store = Arc::clone(&self.store) as Arc<dyn object_store::ObjectStore>;
        let store = TableStore::new(store, "lb_t_history".to_owned(), Duration::ZERO);
        let files = self.files.clone();
        LiveRows::open(
            &store,
            &self.budget,
            files,
            schema,
            &certain(identity),
            i64::MIN,
            memory,
        )
        .await
        .unwrap()
    }

    /// All live rows as text, sorted.
    async fn live(&self, schema: &HistorySchema, identity: &[usize]) -> Vec<String> {
        all(self.open(schema, identity, ENOUGH).await).await
    }
}

async fn all(mut live: LiveRows) -> Vec<String> {
    fn must_be_send<T: Send>(value: T) -> T {
        value
    }
    let mut found = Vec::new();
    while let Some(batch) = must_be_send(live.next()).await.unwrap() {
        assert_eq!(batch.schema(), live.history.columns.source);
        assert!(batch.num_rows() > 0);
        found.extend(texts(batch.columns(), batch.num_rows()));
    }
    found.sort();
    found
}

fn texts(columns: &[ArrayRef], rows: usize) -> Vec<String> {
    let options = FormatOptions::new().with_null("null");
    let columns: Vec<ArrayFormatter> = columns
        .iter()
        .map(|array| ArrayFormatter::try_new(array, &options).unwrap())
        .collect();
    let row = |row| {
        let values = columns.iter().map(|column| column.value(row).to_string());
        values.collect::<Vec<String>>().join("|")
    };
    (0..rows).map(row).collect()
}

fn sorted(schema: &HistorySchema, rows: &[Row]) -> Vec<String> {
    let mut texts = texts(&source_columns(schema, rows), rows.len());
    texts.sort();
    texts
}

fn row(values: &[i64]) -> Row {
    values.iter().copied().map(Some).collect()
}

#[tokio::test]
async fn a_replay_finds_what_is_live() {
    assert!(History::new().live(&three(), &[0]).await.is_empty());
    for seed in 1..13 {
        let (changes, live) = random_history(seed, 3, 400);
        let mut history = History::new();
        for (index, part) in changes.chunks(10 + 7 * seed as usize).enumerate() {
            if index % 3 == 1 {
                history.write_plainly(&three(), part).await;
            } else {
                history.write(&three(), part).await;
            }
        }
        history.write(&three(), &[]).await;
        let all_columns = [0, 1, 2];
        assert_eq!(
            history.live(&three(), &all_columns).await,
            sorted(&three(), &live)
        );
        for identity in [&all_columns[..], &[2, 0], &[1], &[]] {
            let wanted = sorted(&three(), &expected(&changes, identity));
            assert_eq!(history.live(&three(), identity).await, wanted, "{seed}");
            let mut small = history.open(&three(), identity, 5 * ENTRY_BYTES).await;
            small.batch_rows = 4;
            assert_eq!(all(small).await, wanted, "{seed}");
        }
        assert_eq!(history.budget.used(), 0);
    }
}

#[tokio::test]
async fn counts_take_the_memory_they_are_given() {
    let changes: Vec<Change> = (0..1000).map(|id| (true, row(&[id, 1, 1]))).collect();
    let mut history = History::new();
    for part in changes.chunks(300) {
        history.write(&three(), part).await;
    }
    let mut live = history.open(&three(), &[0], 100 * ENTRY_BYTES).await;
    assert_eq!(history.budget.used(), 100 * ENTRY_BYTES);
    let mut rows = 0;
    while let Some(batch) = live.next().await.unwrap() {
        rows += batch.num_rows();
        assert!(live.tally.as_ref().unwrap().bytes() <= 100 * ENTRY_BYTES);
    }
    assert_eq!(rows, 1000);
}

#[tokio::test]
async fn of_equal_rows_the_latest_is_taken() {
    let change = |added, id, price| (added, row(&[id, 1, price]));
    let mut history = History::new();
    let first = [change(true, 1, 0), change(true, 2, 0), change(true, 1, 1)];
    history.write(&three(), &first).await;
    let second = [change(false, 1, 0), change(true, 2, 2), change(true, 1, 3)];
    history.write(&three(), &second).await;
    let live = [[1, 1, 1], [2, 1, 0], [2, 1, 2], [1, 1, 3]].map(|values| row(&values));
    assert_eq!(history.live(&three(), &[0]).await, sorted(&three(), &live));
}

#[tokio::test]
async fn every_type_comes_back_as_it_was() {
    let names: Vec<String> = (0..ALL_TYPES.len())
        .map(|index| format!("c{index}"))
        .collect();
    let fields = names.iter().map(String::as_str).zip(ALL_TYPES);
    let schema = schema(&fields.collect::<Vec<_>>());
    for seed in [3, 4] {
        let (changes, live) = random_history(seed, ALL_TYPES.len(), 200);
        let mut history = History::new();
        history.write(&schema, &changes[..50]).await;
        history.write_plainly(&schema, &changes[50..]).await;
        let identity: Vec<usize> = (0..ALL_TYPES.len()).collect();
        assert_eq!(
            history.live(&schema, &identity).await,
            sorted(&schema, &live)
        );
    }
    // Each type by itself tells rows apart.
    for (index, _) in ALL_TYPES.iter().enumerate() {
        let (zero, one) = (row(&[0; 13]), row(&[1; 13]));
        let (mut null, mut history) = (zero.clone(), History::new());
        null[index] = None;
        let changes = [
            (true, zero.clone()),
            (true, one),
            (true, null),
            (false, zero),
        ];
        history.write(&schema, &changes).await;
        assert_eq!(history.live(&schema, &[index]).await.len(), 2);
    }
}

#[tokio::test]
async fn an_added_column_is_null_before() {
    let old = schema(&[("a.b", DeltaType::Long)]);
    let mut history = History::new();
    history
        .write(
            &old,
            &[(true, row(&[1])), (true, row(&[2])), (true, row(&[3]))],
        )
        .await;
    let changes = [
        (false, vec![Some(1), None, None]),
        (true, row(&[1, 1, 1])),
        (false, vec![Some(3), None, None]),
    ];
    history.write(&three(), &changes).await;
    let live = [vec![Some(2), None, None], row(&[1, 1, 1])];
    assert_eq!(
        history.live(&three(), &[0, 1, 2]).await,
        sorted(&three(), &live)
    );
}

#[tokio::test]
async fn mapped_columns_are_found_by_their_physical_names() {
    let before = schema(&[("old name", DeltaType::Long), ("note", DeltaType::String)]);
    let mut renamed = schema(&[("new", DeltaType::Long), ("note", DeltaType::String)]);
    renamed.mapping = before.mapping.clone();
    let mut history = History::new();
    history
        .write(&before, &[(true, row(&[1, 1])), (true, row(&[2, 2]))])
        .await;
    history.write(&renamed, &[(false, row(&[1, 1]))]).await;
    let live = sorted(&renamed, &[row(&[2, 2])]);
    assert_eq!(history.live(&renamed, &[0, 1]).await, live);
}

#[tokio::test]
async fn older_files_may_have_narrower_types() {
    let decimal = |precision, scale| DeltaType::Decimal { precision, scale };
    let narrow = schema(&[
        ("i", DeltaType::Short),
        ("f", DeltaType::Float),
        ("d", decimal(5, 1)),
        ("n", DeltaType::Integer),
    ]);
    let wide = schema(&[
        ("i", DeltaType::Long),
        ("f", DeltaType::Double),
        ("d", decimal(20, 4)),
        ("n", decimal(12, 2)),
    ]);
    let mut history = History::new();
    let rows = [1, 2, 3].map(|value| (true, row(&[value; 4])));
    history.write(&narrow, &rows).await;
    history.write(&wide, &[(false, row(&[2; 4]))]).await;
    let live = [1, 3].map(|value| row(&[value; 4]));
    assert_eq!(
        history.live(&wide, &[0, 1, 2, 3]).await,
        sorted(&wide, &live)
    );
}

#[tokio::test]
async fn what_was_never_inserted_does_not_live() {
    let mut history = History::new();
    let changes = [(true, row(&[1, 1, 1])), (false, row(&[2, 1, 1]))];
    history.write(&three(), &changes).await;
    assert_eq!(
        history.live(&three(), &[0]).await,
        sorted(&three(), &[row(&[1, 1, 1])])
    );
}

#[tokio::test]
async fn a_damaged_history_is_told() {
    let other = schema(&[("a.b", DeltaType::String)]);
    let mut history = History::new();
    history.write(&other, &[(true, row(&[1]))]).await;
    let mut live = history.open(&three(), &[0], ENOUGH).await;
    let error = live.next().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    // Never taken for the end.
    assert_eq!(live.next().await.unwrap_err().kind(), ErrorKind::Internal);

    let mut history = History::new();
    history
        .put(Bytes::from_static(b"this is no Parquet file"))
        .await;
    let store = TableStore::new(history.store.clone(), "t".to_owned(), Duration::ZERO);
    let files = history.files.clone();
    let (budget, three) = (&history.budget, three());
    let opened = LiveRows::open(
        &store,
        budget,
        files,
        &three,
        &certain(&[0]),
        i64::MIN,
        ENOUGH,
    )
    .await;
    assert_eq!(opened.err().unwrap().kind(), ErrorKind::Conflict);
}

#[tokio::test]
async fn large_values_come_in_small_batches() {
    const BYTES: i64 = 100_000;
    let schema = schema(&[("id", DeltaType::Long), ("note", DeltaType::String)]);
    let changes: Vec<Change> = (0..300).map(|id| (true, row(&[id, BYTES / 2]))).collect();
    // The value once, in a dictionary, and a page for each value.
    for charged in [1, 300 * BYTES as usize] {
        let mut history = History::new();
        let charged = Charged {
            value: batch(&schema, &changes, 1),
            charge: history.budget.charge(charged),
        };
        let file = encode(&schema, charged);
        history.put(file.content).await;
        let mut live = history.open(&schema, &[0, 1], ENOUGH).await;
        let mut rows = 0;
        while let Some(batch) = live.next().await.unwrap() {
            assert!(batch.num_rows() < 100, "{}", batch.num_rows());
            rows += batch.num_rows();
        }
        assert_eq!(rows, 300);
    }
}

fn encode(schema: &HistorySchema, batch: Charged<RecordBatch>) -> EncodedFile {
    let batches = [batch];
    let mut encoder = Encoder::new(
        schema,
        &batches,
        batches[0].value.num_rows(),
        ROW_GROUP_BYTES,
    )
    .unwrap();
    for batch in batches {
        encoder.write(batch).unwrap();
    }
    encoder.finish().unwrap()
}
