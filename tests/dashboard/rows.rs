//! The rows of the matrix: every route with the right that it takes, written down a second time. A route without a row here fails
//! the tests, and so does a row that no route has.

use aftercommit_dashboard::{
    Right::{self, Operate, Public, View},
    Route,
};

const ROWS: [(&str, &str, Right); 59] = [
    ("GET", "/login", Public),
    ("POST", "/login", Public),
    ("POST", "/logout", Public),
    ("GET", "/healthz", Public),
    ("GET", "/readyz", Public),
    ("GET", "/metrics", View),
    ("GET", "/assets/{file}", Public),
    ("GET", "/", View),
    ("GET", "/doubt", View),
    ("GET", "/failures", View),
    ("GET", "/effects", View),
    ("GET", "/effects/{id}", View),
    ("GET", "/effects/{id}/{verb}", Operate),
    ("POST", "/effects/{id}/{verb}", Operate),
    ("GET", "/bulk", View),
    ("GET", "/bulk/new", Operate),
    ("POST", "/bulk/new", Operate),
    ("GET", "/bulk/{id}", View),
    ("POST", "/bulk/{id}/{control}", Operate),
    ("GET", "/downstreams", View),
    ("GET", "/downstreams/{name}/{verb}", Operate),
    ("POST", "/downstreams/{name}/{verb}", Operate),
    ("GET", "/workers", View),
    ("GET", "/requests", View),
    ("GET", "/audit", View),
    ("GET", "/about", View),
    ("GET", "/api/v1/about", View),
    ("GET", "/api/v1/openapi.json", View),
    ("GET", "/api/v1/events", View),
    ("GET", "/api/v1/effects", View),
    ("POST", "/api/v1/effects", Operate),
    ("GET", "/api/v1/effects/{id}", View),
    ("GET", "/api/v1/effects/{id}/attempts", View),
    ("POST", "/api/v1/effects/{id}/retry", Operate),
    ("POST", "/api/v1/effects/{id}/resend", Operate),
    ("POST", "/api/v1/effects/{id}/cancel", Operate),
    ("POST", "/api/v1/effects/{id}/skip", Operate),
    ("POST", "/api/v1/effects/{id}/resolve", Operate),
    ("POST", "/api/v1/effects/{id}/reissue", Operate),
    ("POST", "/api/v1/effects/{id}/redact", Operate),
    ("GET", "/api/v1/bulk", View),
    ("POST", "/api/v1/bulk", Operate),
    ("GET", "/api/v1/bulk/{id}", View),
    ("POST", "/api/v1/bulk/{id}/pause", Operate),
    ("POST", "/api/v1/bulk/{id}/resume", Operate),
    ("POST", "/api/v1/bulk/{id}/cancel", Operate),
    ("GET", "/api/v1/downstreams", View),
    ("POST", "/api/v1/downstreams/{name}/pause", Operate),
    ("POST", "/api/v1/downstreams/{name}/resume", Operate),
    ("GET", "/api/v1/downstreams/{name}/endpoints", View),
    ("POST", "/api/v1/downstreams/{name}/endpoints/{endpoint}/disable", Operate),
    ("POST", "/api/v1/downstreams/{name}/endpoints/{endpoint}/enable", Operate),
    ("GET", "/api/v1/workers", View),
    ("GET", "/api/v1/counts", View),
    ("GET", "/api/v1/causes", View),
    ("GET", "/api/v1/traffic", View),
    ("GET", "/api/v1/latencies", View),
    ("GET", "/api/v1/requests", View),
    ("GET", "/api/v1/audit", View),
];

/// The rows.
pub(super) fn rows() -> Vec<Route> {
    let row = |(method, path, right): (&str, &str, Right)| Route {
        method: method.parse().expect("a method"),
        path: path.to_owned(),
        right,
    };
    ROWS.map(row).to_vec()
}
