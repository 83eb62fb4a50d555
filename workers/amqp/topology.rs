//! Exchanges, queues and bindings that the configuration asks for. What it does not name is never declared, only looked for.

use std::collections::BTreeMap;

use lapin::types::{AMQPValue, FieldTable, LongString, ShortString};

use crate::config::{ConfigError, Node, Section, Setting, Value, quoted};

/// What is declared before the first message that it concerns.
#[derive(Clone, Debug, Default)]
pub(super) struct Topology {
    pub(super) exchanges: BTreeMap<String, Exchange>,
    pub(super) queues: BTreeMap<String, Queue>,
    pub(super) bindings: Vec<Binding>,
    /// What exists with other properties is used as it is.
    pub(super) takes_what_is_there: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Exchange {
    pub(super) kind: String,
    pub(super) durable: bool,
    pub(super) arguments: Arguments,
}

#[derive(Clone, Debug)]
pub(super) struct Queue {
    pub(super) durable: bool,
    pub(super) arguments: Arguments,
}

#[derive(Clone, Debug)]
pub(super) struct Binding {
    pub(super) exchange: String,
    pub(super) queue: String,
    pub(super) routing_key: String,
    pub(super) arguments: Arguments,
}

/// Optional arguments, such as `x-queue-type`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Arguments(BTreeMap<String, Argument>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Argument {
    Text(String),
    Integer(i64),
    Bool(bool),
}

const ARGUMENTS_FORM: &str = "must be a table of strings, whole numbers and booleans";

impl Setting for Arguments {
    fn read(node: &Node) -> Result<Self, String> {
        let Value::Table(table) = &node.value else { return Err(ARGUMENTS_FORM.to_owned()) };
        let argument = |node: &Node| match &node.value {
            Value::Text(text) => Ok(Argument::Text(text.clone())),
            Value::Bool(yes) => Ok(Argument::Bool(*yes)),
            Value::Integer(digits) => digits.parse().map(Argument::Integer).map_err(|_error| ARGUMENTS_FORM),
            Value::Raw(_) | Value::Float(_) | Value::Array(_) | Value::Table(_) | Value::Datetime => {
                Err(ARGUMENTS_FORM)
            }
        };
        let arguments = table.iter().map(|(name, node)| {
            if name.is_empty() || name.len() > 255 {
                return Err(ARGUMENTS_FORM.to_owned());
            }
            Ok((name.clone(), argument(node).map_err(str::to_owned)?))
        });
        arguments.collect::<Result<_, _>>().map(Self)
    }

    fn show(&self) -> String {
        let pairs = self.0.iter().map(|(name, value)| {
            let value = match value {
                Argument::Text(text) => quoted(text),
                Argument::Integer(number) => number.to_string(),
                Argument::Bool(yes) => yes.to_string(),
            };
            format!("{} = {value}", quoted(name))
        });
        format!("{{ {} }}", pairs.collect::<Vec<_>>().join(", "))
    }
}

impl Arguments {
    pub(super) fn table(&self) -> FieldTable {
        let entry = |(name, value): (&String, &Argument)| {
            let value = match value {
                Argument::Text(text) => AMQPValue::LongString(LongString::from(text.as_bytes().to_vec())),
                Argument::Integer(number) => AMQPValue::LongLongInt(*number),
                Argument::Bool(yes) => AMQPValue::Boolean(*yes),
            };
            (name_of(name), value)
        };
        FieldTable::from(self.0.iter().map(entry).collect::<BTreeMap<_, _>>())
    }
}

/// A name of the configuration, whose length was looked at when it was read.
pub(super) fn name_of(name: &str) -> ShortString {
    ShortString::try_new(name).unwrap_or_default()
}

impl Topology {
    /// Reads `declare`.
    pub(super) fn read(section: &Section<'_>) -> Result<Self, ConfigError> {
        if !section.has("declare") {
            return Ok(Self::default());
        }
        let table = section.child("declare")?;
        let takes_what_is_there = table.noting(on_mismatch(&table));
        let mut topology = Self::default();
        for item in table.children("exchanges")? {
            let name = item.noting(name(&item, "name"));
            let exchange = Exchange {
                kind: item.get_or("type", "direct".to_owned())?,
                durable: item.get_or("durable", true)?,
                arguments: item.get("arguments")?.unwrap_or_default(),
            };
            item.finish()?;
            topology.exchanges.extend(name.map(|name| (name, exchange)));
        }
        for item in table.children("queues")? {
            let name = item.noting(name(&item, "name"));
            let queue = Queue {
                durable: item.get_or("durable", true)?,
                arguments: item.get("arguments")?.unwrap_or_default(),
            };
            item.finish()?;
            topology.queues.extend(name.map(|name| (name, queue)));
        }
        for item in table.children("bindings")? {
            let routing_key: String = item.get_or("routing_key", String::new())?;
            if routing_key.len() > 255 {
                item.wrong(item.error("routing_key", "must have at most 255 bytes"));
            }
            let arguments = item.get("arguments")?.unwrap_or_default();
            let ends = (item.noting(name(&item, "exchange")).ok(), item.noting(name(&item, "queue")).ok());
            if let (Some(exchange), Some(queue)) = ends {
                topology.bindings.push(Binding { exchange, queue, routing_key, arguments });
            }
            item.finish()?;
        }
        table.finish()?;
        Ok(Self { takes_what_is_there: takes_what_is_there?, ..topology })
    }

    /// What would surprise its author.
    pub(super) fn warnings(&self) -> Vec<String> {
        let fleeting = self.queues.iter().filter(|(_, queue)| !queue.durable).map(|(name, _)| {
            format!("declare: queue {name} is not durable: a restart of the broker loses it and every confirmed message in it")
        });
        let exchanges = self.exchanges.iter().filter(|(_, exchange)| !exchange.durable).map(|(name, _)| {
            format!("declare: exchange {name} is not durable: a restart of the broker loses it")
        });
        fleeting.chain(exchanges).collect()
    }
}

fn on_mismatch(table: &Section<'_>) -> Result<bool, ConfigError> {
    match table.get_or("on_mismatch", "refuse".to_owned())?.as_str() {
        "refuse" => Ok(false),
        "use" => Ok(true),
        _ => Err(table.error(
            "on_mismatch",
            "must be \"refuse\" (send nothing to what exists with other properties) or \"use\" (take it as it is)",
        )),
    }
}

fn name(item: &Section<'_>, key: &str) -> Result<String, ConfigError> {
    let Some(name) = item.get::<String>(key)? else {
        return Err(item.missing(key, "is missing"));
    };
    if name.is_empty() || name.len() > 255 {
        return Err(item.error(key, "must have 1 to 255 bytes"));
    }
    Ok(name)
}
