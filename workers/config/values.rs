//! The forms that values have: durations, sizes, rates, references to secrets.

use std::{collections::BTreeMap, fmt, time::Duration};

use aftercommit::downstream;

use super::tree::{Node, Value};

/// A type that a key can have.
pub(crate) trait Setting: Sized {
    /// Reads it; the error says what it must be and never repeats the value.
    fn read(node: &Node) -> Result<Self, String>;
    /// As it would be written.
    fn show(&self) -> String;
}

/// Text of a quoted string or of a variable.
fn text(node: &Node, form: &str) -> Result<String, String> {
    let wrong = || format!("must be {form}, and is {}", node.value.what());
    node.value.text().map(str::to_owned).ok_or_else(wrong)
}

/// `text` as a TOML string.
pub(crate) fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

impl Setting for String {
    fn read(node: &Node) -> Result<Self, String> {
        text(node, "a string")
    }

    fn show(&self) -> String {
        quoted(self)
    }
}

impl Setting for bool {
    fn read(node: &Node) -> Result<Self, String> {
        if let Value::Bool(yes) = node.value {
            return Ok(yes);
        }
        let word = if let Value::Raw(raw) = &node.value { raw.parse().ok() } else { None };
        word.ok_or_else(|| format!("must be true or false, and is {}", node.value.what()))
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

impl Setting for u32 {
    fn read(node: &Node) -> Result<Self, String> {
        let number = node.value.number().and_then(|digits| digits.parse().ok());
        number.ok_or_else(|| format!("must be a whole number from 0 to {}, without quotes", Self::MAX))
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

impl Setting for f64 {
    fn read(node: &Node) -> Result<Self, String> {
        let number = node.value.number().and_then(|digits| digits.parse().ok());
        number
            .filter(|number: &Self| number.is_finite())
            .ok_or_else(|| "must be a finite number, without quotes".to_owned())
    }

    fn show(&self) -> String {
        format!("{self:?}")
    }
}

/// A list of strings; a single string is a list of one.
impl Setting for Vec<String> {
    fn read(node: &Node) -> Result<Self, String> {
        if let Value::Array(items) = &node.value {
            return items.iter().map(|item| text(item, "a list of strings")).collect();
        }
        Ok(vec![text(node, "a list of strings")?])
    }

    fn show(&self) -> String {
        format!("[{}]", self.iter().map(|item| quoted(item)).collect::<Vec<_>>().join(", "))
    }
}

/// A list of ports; a single number is a list of one.
impl Setting for Vec<u16> {
    fn read(node: &Node) -> Result<Self, String> {
        const FORM: &str = "must be a list of numbers from 0 to 65535, such as [8443]";
        let port = |node: &Node| node.value.number().and_then(|digits| digits.parse().ok());
        let ports: Option<Self> = if let Value::Array(items) = &node.value {
            items.iter().map(port).collect()
        } else {
            port(node).map(|port| vec![port])
        };
        ports.ok_or_else(|| FORM.to_owned())
    }

    fn show(&self) -> String {
        format!("{self:?}")
    }
}

/// A table of strings.
impl Setting for BTreeMap<String, String> {
    fn read(node: &Node) -> Result<Self, String> {
        let Value::Table(table) = &node.value else {
            return Err(format!("must be a table of strings, and is {}", node.value.what()));
        };
        table.iter().map(|(key, value)| Ok((key.clone(), text(value, "a table of strings")?))).collect()
    }

    fn show(&self) -> String {
        let pairs: Vec<_> =
            self.iter().map(|(key, value)| format!("{} = {}", quoted(key), quoted(value))).collect();
        format!("{{ {} }}", pairs.join(", "))
    }
}

const DURATION_FORM: &str = "must be a duration such as \"500ms\", \"30s\", \"10m\", \"24h\" or \"400d\"";
/// Longer than any window or retention means for ever, and would overflow a date.
const DURATION_MAX: Duration = Duration::from_secs(100 * 366 * 86_400);

impl Setting for Duration {
    fn read(node: &Node) -> Result<Self, String> {
        let text = text(node, "a duration such as \"30s\"")?;
        duration(&text).ok_or_else(|| DURATION_FORM.to_owned())
    }

    fn show(&self) -> String {
        quoted(&show_duration(*self))
    }
}

/// `"1h30m"` and the like: whole numbers with units, no spaces, no sign.
pub(crate) fn duration(text: &str) -> Option<Duration> {
    let mut total = Duration::ZERO;
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit())?;
        let number: u64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let unit_len = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        let unit_ms: u64 = match &rest[..unit_len] {
            "ms" => 1,
            "s" => 1000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            _ => return None,
        };
        total = total.checked_add(Duration::from_millis(number.checked_mul(unit_ms)?))?;
        rest = &rest[unit_len..];
    }
    (!text.is_empty() && total <= DURATION_MAX).then_some(total)
}

/// The inverse of [`duration`], in the largest unit that divides it.
pub(crate) fn show_duration(duration: Duration) -> String {
    let ms = duration.as_millis();
    for (unit, unit_ms) in [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000)] {
        if ms != 0 && ms.is_multiple_of(unit_ms) {
            return format!("{}{unit}", ms / unit_ms);
        }
    }
    if ms == 0 { "0s".to_owned() } else { format!("{ms}ms") }
}

/// A number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size(pub(crate) usize);

impl Setting for Size {
    fn read(node: &Node) -> Result<Self, String> {
        const FORM: &str = "must be a size such as \"512KiB\" or \"1MiB\"";
        let text = text(node, "a size such as \"1MiB\"")?;
        let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let unit = match &text[digits..] {
            "B" | "" => 1,
            "KiB" => 1 << 10,
            "MiB" => 1 << 20,
            "GiB" => 1 << 30,
            _ => return Err(FORM.to_owned()),
        };
        let number = text[..digits].parse::<usize>().ok().and_then(|number| number.checked_mul(unit));
        number.map(Self).ok_or_else(|| FORM.to_owned())
    }

    fn show(&self) -> String {
        for (unit, bytes) in [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)] {
            if self.0 != 0 && self.0.is_multiple_of(bytes) {
                return quoted(&format!("{}{unit}", self.0 / bytes));
            }
        }
        quoted(&format!("{}B", self.0))
    }
}

/// Calls per time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rate(pub(crate) downstream::Rate);

impl Setting for Rate {
    fn read(node: &Node) -> Result<Self, String> {
        const FORM: &str = "must be a rate such as \"25/s\", \"100/m\" or \"1000/h\"";
        let text = text(node, "a rate such as \"25/s\"")?;
        let read = || {
            let (count, unit) = text.split_once('/')?;
            let calls = count.parse::<u32>().ok().filter(|calls| *calls > 0)?;
            let seconds = match unit {
                "s" => 1,
                "m" => 60,
                "h" => 3600,
                _ => return None,
            };
            Some(downstream::Rate { calls, period: Duration::from_secs(seconds) })
        };
        read().map(Self).ok_or_else(|| FORM.to_owned())
    }

    fn show(&self) -> String {
        quoted(&self.0.to_string())
    }
}

/// Where a secret stands. The value itself is never part of the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SecretRef {
    /// In this environment variable.
    Env(String),
    /// In this file, without a trailing newline.
    File(String),
}

impl fmt::Display for SecretRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Env(variable) => write!(f, "{{ env = {} }}", quoted(variable)),
            Self::File(path) => write!(f, "{{ file = {} }}", quoted(path)),
        }
    }
}

impl Setting for SecretRef {
    fn read(node: &Node) -> Result<Self, String> {
        const FORM: &str = "must be a reference, { env = \"NAME\" } or { file = \"/path\" }";
        let Value::Table(table) = &node.value else {
            return Err(format!("{FORM}: a secret does not stand in the configuration itself"));
        };
        match (table.len(), table.get("env"), table.get("file")) {
            (1, Some(env), None) => Ok(Self::Env(text(env, "the name of a variable")?)),
            (1, None, Some(file)) => Ok(Self::File(text(file, "the path of a file")?)),
            _ => Err(FORM.to_owned()),
        }
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

/// The environment as it was when the configuration was loaded. It never prints.
#[derive(Clone, Default)]
pub(crate) struct Secrets(pub(crate) BTreeMap<String, String>);

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secrets(..)")
    }
}

impl Secrets {
    /// The secret's value.
    pub(crate) fn resolve(&self, reference: &SecretRef) -> Result<String, String> {
        let value = match reference {
            SecretRef::Env(variable) => self.0.get(variable).cloned().ok_or_else(|| {
                format!("the environment variable {variable} is not set: set it, or name another")
            })?,
            SecretRef::File(path) => std::fs::read_to_string(path)
                .map(|text| text.trim_end_matches(['\r', '\n']).to_owned())
                .map_err(|error| format!("the file {path} cannot be read: {error}"))?,
        };
        if value.is_empty() {
            return Err(format!("the secret {reference} is empty"));
        }
        Ok(value)
    }
}
