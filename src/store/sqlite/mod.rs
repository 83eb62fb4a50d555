//! SQLite: the embedded default and a real store for one-machine applications.

use std::sync::Arc;

use crate::{
    error::StoreError,
    store::{Database, Migrated, Options},
};

pub(crate) async fn connect(_url: &str, _options: &Options) -> Result<Arc<dyn Database>, StoreError> {
    Err(StoreError::Unsupported("not built yet".to_owned()))
}

pub(crate) async fn migrate(_url: &str, _environment: Option<&str>) -> Result<Migrated, StoreError> {
    Err(StoreError::Unsupported("not built yet".to_owned()))
}

pub(crate) fn migration_sql() -> String {
    String::new()
}
