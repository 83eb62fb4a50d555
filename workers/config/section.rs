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

/// How the problem with a key that nobody asked for begins.
const UNKNOWN: &str = "unknown key; ";

/// What was read and what was wrong, in the order in which it was read.
#[derive(Debug, Default)]
pub(crate) struct Log {
    effective: RefCell<Vec<Effective>>,
    problems: RefCell<Vec<ConfigError>>,
    /// The keys of values that could not be read.
    unread: RefCell<Vec<String>>,
}

impl Log {
    /// Notes what is wrong, unless something about that key is noted already, or something in its table could not be read: the rest
    /// would only follow from it.
    pub(crate) fn problem(&self, problem: ConfigError) {
        let told = self.problems.borrow().iter().any(|noted| noted.key == problem.key);
        let follows = self.unread.borrow().iter().any(|unread| is_inside(unread, &problem.key));
        if !told && !follows {
            self.problems.borrow_mut().push(problem);
        }
    }

    /// Notes a value that could not be read, or a key that nobody asked for.
    fn unread(&self, problem: ConfigError) {
        let key = problem.key.clone();
        self.problem(problem);
        self.unread.borrow_mut().push(key);
    }

    /// Whether something about this dotted key, or in its table, is noted as wrong.
    fn is_wrong(&self, key: &str) -> bool {
        self.problems.borrow().iter().any(|noted| is_inside(&noted.key, key))
    }

    /// How much is wrong so far.
    pub(crate) fn problems(&self) -> usize {
        self.problems.borrow().len()
    }

    /// What was read.
    ///
    /// # Errors
    ///
    /// Everything that is wrong.
    pub(crate) fn into_inner(self) -> Result<Vec<Effective>, Vec<ConfigError>> {
        let mut problems = self.problems.into_inner();
        // A misspelt key explains what is missing.
        problems.sort_by_key(|problem| !problem.problem.starts_with(UNKNOWN));
        if problems.is_empty() { Ok(self.effective.into_inner()) } else { Err(problems) }
    }
}

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

    /// The value of `key`, if it was given. One that cannot be read is noted as wrong and taken as not given, so that the
    /// rest is read too; nothing comes of a configuration in which something is wrong.
    pub(crate) fn get<T: Setting>(&self, key: &str) -> Result<Option<T>, ConfigError> {
        let Some(node) = self.node(key) else { return Ok(None) };
        match T::read(node) {
            Ok(value) => {
                self.note(key, value.show(), &node.origin);
                Ok(Some(value))
            }
            Err(problem) => {
                self.log.unread(self.error(key, problem));
                Ok(None)
            }
        }
    }

    /// The error for a `key` that must be given. Where a key that looks like it was given, that one is meant.
    pub(crate) fn missing(&self, key: &str, remedy: &str) -> ConfigError {
        let known = self.known.borrow();
        let strangers = self.table.into_iter().flat_map(|table| table.iter());
        let similar = strangers
            .filter(|(name, _)| !known.iter().any(|known| known == *name))
            .find(|(name, _)| nearest(name, known.iter().map(String::as_str).chain([key])) == Some(key));
        match similar {
            Some((name, node)) => {
                ConfigError::new(&node.origin, self.dotted(name), format!("{UNKNOWN}did you mean `{key}`?"))
            }
            None => self.error(key, remedy),
        }
    }

    /// [`Self::get`] for a value that must be checked before it may be shown.
    pub(crate) fn get_unshown<T: Setting>(&self, key: &str) -> Result<Option<T>, ConfigError> {
        let Some(node) = self.node(key) else { return Ok(None) };
        let read = T::read(node).map_err(|problem| self.log.unread(self.error(key, problem)));
        Ok(read.ok())
    }

    /// Whether `key` was given as a table, such as a reference to a secret.
    pub(crate) fn is_table(&self, key: &str) -> bool {
        self.table.and_then(|table| table.get(key)).is_some_and(|node| matches!(node.value, Value::Table(_)))
    }

    /// The value of `key`, or this default.
    pub(crate) fn get_or<T: Setting>(&self, key: &str, default: T) -> Result<T, ConfigError> {
        if let Some(value) = self.get(key)? {
            return Ok(value);
        }
        self.note(key, default.show(), &Origin::Default);
        Ok(default)
    }

    /// Notes what is wrong, and goes on.
    pub(crate) fn wrong(&self, problem: ConfigError) {
        self.log.problem(problem);
    }

    /// Notes what is wrong with a part, and hands it on: whoever reads the whole reads the rest too before giving up.
    pub(crate) fn noting<T>(&self, read: Result<T, ConfigError>) -> Result<T, ConfigError> {
        read.inspect_err(|problem| self.log.problem(problem.clone()))
    }

    /// Whether something about `key`, or in its table, was noted as wrong: then what depends on it is not judged.
    pub(crate) fn is_wrong(&self, key: &str) -> bool {
        self.log.is_wrong(&self.dotted(key))
    }

    /// Notes an effective value.
    pub(crate) fn note(&self, key: &str, value: String, origin: &Origin) {
        self.log.effective.borrow_mut().push(Effective {
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

    /// The tables of the list `key`, as `[[key]]` writes them; none when it was not given.
    pub(crate) fn children(&self, key: &str) -> Result<Vec<Section<'a>>, ConfigError> {
        let items: &[Node] = match self.node(key) {
            None => &[],
            Some(Node { value: Value::Array(items), .. }) => items,
            Some(_) => return Err(self.error(key, format!("must be a list of tables: write [[{key}]]"))),
        };
        let child = |(at, item): (usize, &'a Node)| {
            let Value::Table(table) = &item.value else {
                return Err(self.error(key, format!("must hold tables, and holds {}", item.value.what())));
            };
            Ok(Section {
                path: format!("{}[{at}]", self.dotted(key)),
                table: Some(table),
                origin: item.origin.clone(),
                known: RefCell::default(),
                log: self.log,
            })
        };
        items.iter().enumerate().map(child).collect()
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

    /// Notes as wrong what nobody asked for.
    pub(crate) fn finish(self) -> Result<(), ConfigError> {
        self.finished()
    }

    /// [`Self::finish`] for a table that somebody else owns.
    pub(crate) fn finished(&self) -> Result<(), ConfigError> {
        let known = self.known.borrow();
        let Some(table) = self.table else { return Ok(()) };
        for (key, node) in table.iter().filter(|(key, _)| !known.iter().any(|name| name == *key)) {
            let hint = match nearest(key, known.iter().map(String::as_str)) {
                Some(nearest) => format!("did you mean `{nearest}`?"),
                None => {
                    let mut names: Vec<_> = known.iter().map(String::as_str).collect();
                    names.sort_unstable();
                    names.dedup();
                    format!("known here: {}", names.join(", "))
                }
            };
            let problem = format!("{UNKNOWN}{hint}");
            self.log.unread(ConfigError::new(&node.origin, self.dotted(key), problem));
        }
        Ok(())
    }
}

/// Whether a dotted key is another one, or stands in its table.
fn is_inside(key: &str, table: &str) -> bool {
    key.strip_prefix(table).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}

/// The name most like `key`, if any is like it; of equals the first.
pub fn nearest<'n>(key: &str, names: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    names
        .map(|name| (strsim::jaro_winkler(&key.to_ascii_lowercase(), name), name))
        .filter(|(likeness, _)| *likeness > 0.75)
        .min_by(|a, b| b.0.total_cmp(&a.0))
        .map(|(_, name)| name)
}
