//! Names are resolved by the connection that uses the answer: what is judged is what is connected to.

use std::{net::SocketAddr, sync::Arc};

use reqwest::dns::{Addrs, Name, Resolve, Resolving};

use super::{Egress, Refused};

/// The machine's own resolver, as every other program here asks it.
pub(crate) struct SystemNames;

impl Resolve for SystemNames {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            let found: Vec<SocketAddr> = tokio::net::lookup_host((name.as_str(), 0)).await?.collect();
            Ok(Box::new(found.into_iter()) as Addrs)
        })
    }
}

/// Hands out an answer only when every address of it may be called: one that may not says that the name cannot be trusted.
pub(super) struct Guard {
    egress: Arc<Egress>,
    names: Arc<dyn Resolve>,
}

impl Guard {
    pub(super) fn new(egress: Arc<Egress>, names: Arc<dyn Resolve>) -> Self {
        Self { egress, names }
    }
}

impl Resolve for Guard {
    fn resolve(&self, name: Name) -> Resolving {
        let (egress, host) = (Arc::clone(&self.egress), name.as_str().to_owned());
        let answer = self.names.resolve(name);
        Box::pin(async move {
            // Without a port: the URL's is the one that was judged.
            let addresses: Vec<_> = answer.await?.map(|found| SocketAddr::new(found.ip(), 0)).collect();
            if addresses.is_empty() {
                return Err("the answer holds no address".into());
            }
            if let Some(kind) = addresses.iter().find_map(|found| egress.forbids(&host, found.ip())) {
                let why = format!(
                    "{host} resolves to {kind}: the egress guard refuses it unless egress.allow lists it"
                );
                return Err(Refused(why).into());
            }
            Ok(Box::new(addresses.into_iter()) as Addrs)
        })
    }
}

impl Refused {
    /// The guard's refusal, if that is what ended a call: nothing was sent then.
    pub(in crate::http) fn behind(error: &reqwest::Error) -> Option<&Self> {
        let mut source = std::error::Error::source(error);
        while let Some(error) = source {
            if let Some(refused) = error.downcast_ref::<Self>() {
                return Some(refused);
            }
            source = error.source();
        }
        None
    }
}
