//! Reading one table of the tree: typed, every key known, every effective value noted with its source.

use std::cell::RefCell;

use super::{
    ConfigError,
    tree::{Node, Origin, Table, Value},
    values::Setting,
};

/// An effective value, for `config show`.
#[derive(Clone, Debug)]
pub(crate) struct Effective {
    pub(crate) table: String,
    pub(crate) key: String,
    pub(crate) value: String,
    pub(crate) source: String,
}

/// What was read, in the order in which it was read.
pub(crate) type Log = RefCell<Vec<Effective>>;

/// One table, being read.
pub(crate) struct Section<'a> {
    path: String,
    table: Option<&'a Table>,
    origin: Origin,
    known: RefCell<Vec<String>>,
    log: &'a Log,
}

impl<'a> Section<'a> {
    pub(crate) fn root(table: &'a Table, log: &'a Log) -> Self {
        Self {
            path: String::new(),
            table: Some(table),
            origin: Origin::Default,
            known: RefCell::default(),
            log,
        }
    }

    /// The dotted path of `key`.
    pub(crate) fn dotted(&self, key: &str) -> String {
        match (self.path.is_empty(), key.is_empty()) {
            (true, _) => key.to_owned(),
            (false, true) => self.path.clone(),
            (false, false) => format!("{}.{key}", self.path),
        }
    }

    fn node(&self, key: &str) -> Option<&'a Node> {
        self.known.borrow_mut().push(key.to_owned());
        self.table.and_then(|table| table.get(key))
    }

    /// Where `key` was given, else where its table was.
    pub(crate) fn place(&self, key: &str) -> Origin {
        self.table
            .and_then(|table| table.get(key))
            .map_or_else(|| self.origin.clone(), |node| node.origin.clone())
    }

    /// An error about `key`.
    pub(crate) fn error(&self, key: &str, problem: impl Into<String>) -> ConfigError {
        ConfigError::new(self.place(key), self.dotted(key), problem)
    }

    /// Whether `key` was given.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.table.is_some_and(|table| table.contains_key(key))
    }

    /// The value of `key`, if it was given.
    pub(crate) fn get<T: Setting>(&self, key: &str) -> Result<Option<T>, ConfigError> {
        let Some(node) = self.node(key) else { return Ok(None) };
        let value = T::read(node).map_err(|problem| self.error(key, problem))?;
        self.note(key, value.show(), &node.origin);
        Ok(Some(value))
    }

    /// [`Self::get`] for a value that must be checked before it may be shown.
    pub(crate) fn get_unshown<T: Setting>(&self, key: &str) -> Result<Option<T>, ConfigError> {
        let read = |node| T::read(node).map_err(|problem| self.error(key, problem));
        self.node(key).map(read).transpose()
    }

    /// The value of `key`, or this default.
    pub(crate) fn get_or<T: Setting>(&self, key: &str, default: T) -> Result<T, ConfigError> {
        if let Some(value) = self.get(key)? {
            return Ok(value);
        }
        self.note(key, default.show(), &Origin::Default);
        Ok(default)
    }

    fn note(&self, key: &str, value: String, origin: &Origin) {
        self.log.borrow_mut().push(Effective {
            table: self.path.clone(),
            key: key.to_owned(),
            value,
            source: origin.to_string(),
        });
    }

    /// The table `key`; an empty one when it was not given.
    pub(crate) fn child(&self, key: &str) -> Result<Section<'a>, ConfigError> {
        let (table, origin) = match self.node(key) {
            None => (None, self.origin.clone()),
            Some(Node { value: Value::Table(table), origin }) => (Some(table), origin.clone()),
            Some(node) => {
                return Err(self.error(key, format!("must be a table, and is {}", node.value.what())));
            }
        };
        Ok(Section { path: self.dotted(key), table, origin, known: RefCell::default(), log: self.log })
    }

    /// The names in this table, which the user chose.
    pub(crate) fn names(&self) -> Vec<String> {
        self.table.map(|table| table.keys().cloned().collect()).unwrap_or_default()
    }

    /// Refuses `key` if it was given: it is known, and this version does not have it.
    pub(crate) fn not_yet(&self, key: &str, instead: &str) -> Result<(), ConfigError> {
        if self.node(key).is_some() {
            return Err(self.error(key, format!("is not supported yet: {instead}")));
        }
        Ok(())
    }

    /// Refuses what nobody asked for.
    pub(crate) fn finish(self) -> Result<(), ConfigError> {
        self.finished()
    }

    /// [`Self::finish`] for a table that somebody else owns.
    pub(crate) fn finished(&self) -> Result<(), ConfigError> {
        let known = self.known.borrow();
        let Some(table) = self.table else { return Ok(()) };
        let Some((key, node)) = table.iter().find(|(key, _)| !known.iter().any(|name| name == *key)) else {
            return Ok(());
        };
        let hint = match nearest(key, known.iter().map(String::as_str)) {
            Some(nearest) => format!("did you mean `{nearest}`?"),
            None => {
                let mut names: Vec<_> = known.iter().map(String::as_str).collect();
                names.sort_unstable();
                names.dedup();
                format!("known here: {}", names.join(", "))
            }
        };
        Err(ConfigError::new(&node.origin, self.dotted(key), format!("unknown key; {hint}")))
    }
}

/// The name most like `key`, if any is like it.
pub(crate) fn nearest<'n>(key: &str, names: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    names
        .map(|name| (strsim::jaro_winkler(&key.to_ascii_lowercase(), name), name))
        .filter(|(likeness, _)| *likeness > 0.75)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, name)| name)
}
