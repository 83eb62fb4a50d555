//! The sheet, the module and the icon: inside the binary, each under a name with a hash of what it holds, so that a browser may
//! keep it for ever and never shows an old one with a new page.

use std::sync::LazyLock;

use axum::{
    extract::Path,
    http::header,
    response::{IntoResponse, Response},
};

use crate::{problem::Problem, settings::hash};

struct Asset {
    name: String,
    kind: &'static str,
    text: &'static str,
}

impl Asset {
    fn new(name: &str, kind: &'static str, text: &'static str) -> Self {
        let (stem, ending) = name.split_once('.').unwrap_or((name, ""));
        let sum: String = hash(text.as_bytes()).iter().take(6).map(|byte| format!("{byte:02x}")).collect();
        Self { name: format!("{stem}.{sum}.{ending}"), kind, text }
    }
}

static SHEET: LazyLock<Asset> =
    LazyLock::new(|| Asset::new("app.css", "text/css; charset=utf-8", include_str!("../assets/app.css")));
static MODULE: LazyLock<Asset> = LazyLock::new(|| {
    Asset::new("app.js", "text/javascript; charset=utf-8", include_str!("../assets/app.js"))
});
static ICON: LazyLock<Asset> =
    LazyLock::new(|| Asset::new("icon.svg", "image/svg+xml", include_str!("../assets/icon.svg")));

/// The sheet's name below `assets/`.
pub(crate) fn sheet() -> &'static str {
    &SHEET.name
}

/// The module's.
pub(crate) fn module() -> &'static str {
    &MODULE.name
}

/// The icon's.
pub(crate) fn icon() -> &'static str {
    &ICON.name
}

/// `GET /assets/{file}`.
pub(super) async fn serve(Path(file): Path<String>) -> Result<Response, Problem> {
    let assets: [&Asset; 3] = [&SHEET, &MODULE, &ICON];
    let asset = assets.into_iter().find(|asset| asset.name == file).ok_or_else(Problem::no_page)?;
    let headers =
        [(header::CONTENT_TYPE, asset.kind), (header::CACHE_CONTROL, "public, max-age=31536000, immutable")];
    Ok((headers, asset.text).into_response())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_changes_with_what_it_names() {
        let name = |text| Asset::new("app.css", "text/css", text).name;
        assert!(name("a").starts_with("app.") && name("a").ends_with(".css") && name("a") != name("b"));
    }

    #[test]
    fn nothing_is_loaded_from_elsewhere() {
        for asset in [&SHEET, &MODULE, &ICON] {
            let outside = asset.text.replace("http://www.w3.org/2000/svg", "");
            for word in ["http:", "https:", "//cdn", "@import", "eval(", "innerHTML", ".style"] {
                assert!(!outside.contains(word), "{word} in {}", asset.name);
            }
        }
    }
}
