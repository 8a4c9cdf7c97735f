//! Addresses of scenes that lie elsewhere, and what of them may be shown.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// Schemes of addresses that are read.
const SCHEMES: [&str; 10] = [
    "s3", "s3a", "gs", "az", "adl", "azure", "abfs", "abfss", "http", "https",
];
/// Schemes whose addresses name the container before an `@`.
const CONTAINER_FIRST: [&str; 5] = ["az", "adl", "azure", "abfs", "abfss"];
/// What is shown in place of credentials.
const HIDDEN: &str = "***";

/// Whole addresses by what is shown of them, for those that hold credentials.
static WHOLE: Mutex<BTreeMap<String, String>> = Mutex::new(BTreeMap::new());

/// The parts of an address, of which all but the credentials are shown.
struct Parts<'a> {
    scheme: &'a str,
    /// Before the `@`.
    user: Option<&'a str>,
    /// Host and path.
    place: &'a str,
    /// Behind the `?`.
    query: Option<&'a str>,
}

impl<'a> Parts<'a> {
    fn of(text: &'a str) -> Option<Self> {
        let (scheme, rest) = text.split_once("://")?;
        let known = SCHEMES
            .iter()
            .any(|known| known.eq_ignore_ascii_case(scheme));
        if !known {
            return None;
        }
        let (before, query) = match rest.find(['?', '#']) {
            Some(at) => (&rest[..at], Some(&rest[at + 1..])),
            None => (rest, None),
        };
        let authority = &before[..before.find('/').unwrap_or(before.len())];
        let (user, place) = match authority.rfind('@') {
            Some(at) => (Some(&before[..at]), &before[at + 1..]),
            None => (None, before),
        };
        Some(Self {
            scheme,
            user,
            place,
            query: query.filter(|query| !query.is_empty()),
        })
    }

    fn container(&self) -> Option<&'a str> {
        let first = CONTAINER_FIRST
            .iter()
            .any(|scheme| scheme.eq_ignore_ascii_case(self.scheme));
        self.user.filter(|user| first && !user.contains(':'))
    }

    fn has_credentials(&self) -> bool {
        self.query.is_some() || (self.user.is_some() && self.container().is_none())
    }

    fn shown(&self) -> String {
        let user = match (self.user, self.container()) {
            (_, Some(container)) => format!("{container}@"),
            (Some(_), None) => format!("{HIDDEN}@"),
            (None, None) => String::new(),
        };
        let query = match self.query {
            Some(_) => format!("?{HIDDEN}"),
            None => String::new(),
        };
        format!("{}://{user}{}{query}", self.scheme, self.place)
    }
}

/// Whether this is the address of a scene that lies elsewhere: `s3://`, `gs://`, `az://`, `http://` or `https://`.
pub fn is_url(path: &Path) -> bool {
    path.to_str().and_then(Parts::of).is_some()
}

/// Takes the credentials out of an address, a name and password or all that follows the question mark (a shared access
/// signature, a signed request), and keeps them for [`open`](crate::open) in this process.
///
/// What is returned may be shown and written down anywhere; a path of a file is returned as it is.
pub fn keep_credentials(path: PathBuf) -> PathBuf {
    let Some(parts) = path.to_str().and_then(Parts::of) else {
        return path;
    };
    let hidden = parts.user == Some(HIDDEN) || parts.query == Some(HIDDEN);
    if !parts.has_credentials() || hidden {
        return path;
    }
    let shown = parts.shown();
    WHOLE
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .insert(shown.clone(), path.to_string_lossy().into_owned());
    PathBuf::from(shown)
}

/// A path as it stands in a document of the folder `folder`: a relative one is meant from there, an address is one anywhere, of
/// which the credentials are kept apart ([`keep_credentials`]).
pub fn resolved(folder: &Path, path: &Path) -> PathBuf {
    match is_url(path) {
        true => keep_credentials(path.to_owned()),
        false => folder.join(path),
    }
}

/// The address that is shown as `shown`; none where its credentials were never given to this process.
#[cfg(feature = "cloud")]
pub(crate) fn whole(shown: &Path) -> Option<String> {
    let text = shown.to_str()?;
    let known = WHOLE.lock().unwrap_or_else(PoisonError::into_inner);
    match known.get(text) {
        Some(whole) => Some(whole.clone()),
        None => Parts::of(text)
            .filter(|parts| !parts.has_credentials())
            .map(|_| text.to_owned()),
    }
}

/// A text of others, such as an error's, without the addresses in it and without what `whole` holds of credentials.
#[cfg(feature = "cloud")]
pub(crate) fn scrubbed(text: &str, whole: &str) -> String {
    let words = text.split_whitespace().map(|word| {
        let plain = word.trim_matches(|c: char| "\"'()<>,".contains(c));
        match plain.contains("://") {
            true => word.replace(plain, "the address"),
            false => word.to_owned(),
        }
    });
    let mut text = words.collect::<Vec<_>>().join(" ");
    if let Some(parts) = Parts::of(whole) {
        let values = parts.query.into_iter().flat_map(|query| {
            let pairs = query
                .split('&')
                .filter_map(|pair| Some(pair.split_once('=')?.1));
            [query].into_iter().chain(pairs)
        });
        let names = parts.user.filter(|_| parts.container().is_none());
        let names = names.into_iter().flat_map(|user| user.split(':'));
        for secret in values.chain(names).filter(|secret| secret.len() > 3) {
            text = text.replace(secret, HIDDEN);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(text: &str) -> String {
        keep_credentials(PathBuf::from(text)).display().to_string()
    }

    #[test]
    fn an_address_is_shown_without_what_gives_access() {
        for (address, shown) in [
            (
                "https://anna:s3cret@host.org:8443/a/b.tif",
                "https://***@host.org:8443/a/b.tif",
            ),
            (
                "https://token@host.org/b.tif?x=1#f",
                "https://***@host.org/b.tif?***",
            ),
            (
                "https://a.blob.core.windows.net/c/b.tif?sv=2024&sig=aB%2Fc",
                "https://a.blob.core.windows.net/c/b.tif?***",
            ),
            (
                "HTTPS://host/b.tif?X-Amz-Signature=ff",
                "HTTPS://host/b.tif?***",
            ),
            ("s3://key:secret@bucket/b.tif", "s3://***@bucket/b.tif"),
            // A password may hold an @ of its own, and a path one that parts nothing.
            ("http://a:p@ss@host/b.tif", "http://***@host/b.tif"),
            ("http://host/a@b.tif", "http://host/a@b.tif"),
            (
                "az://container@account/b.tif",
                "az://container@account/b.tif",
            ),
            ("az://container:key@account/b.tif", "az://***@account/b.tif"),
            ("s3://bucket/b.tif", "s3://bucket/b.tif"),
            ("folder/b.tif?x", "folder/b.tif?x"),
            (
                "ftp://anna:s3cret@host/b.tif",
                "ftp://anna:s3cret@host/b.tif",
            ),
        ] {
            assert_eq!(kept(address), shown);
            assert_eq!(kept(shown), shown, "what is shown stays as it is");
        }
    }

    #[test]
    fn an_address_is_no_path_from_a_folder() {
        let at = |path: &str| resolved(Path::new("/data"), Path::new(path));
        assert_eq!(at("a.tif"), Path::new("/data/a.tif"));
        assert_eq!(at("/b/a.tif"), Path::new("/b/a.tif"));
        assert_eq!(at("s3://b/a.tif"), Path::new("s3://b/a.tif"));
        assert_eq!(at("https://x:y@b/a.tif"), Path::new("https://***@b/a.tif"));
    }

    #[cfg(feature = "cloud")]
    #[test]
    fn credentials_are_known_again_by_what_is_shown() {
        let address = "https://anna:known@again.org/b.tif?sig=abc";
        assert_eq!(whole(Path::new("https://***@again.org/b.tif?***")), None);
        let shown = keep_credentials(address.into());
        assert_eq!(whole(&shown).as_deref(), Some(address));
        let open = "s3://bucket/b.tif";
        assert_eq!(whole(Path::new(open)).as_deref(), Some(open));
    }

    #[cfg(feature = "cloud")]
    #[test]
    fn an_error_of_others_tells_no_secret() {
        let whole = "https://anna:s3cret@host/b.tif?sv=20&sig=aB%2Fc";
        let text =
            "GET \"https://host/b.tif?sv=20&sig=aB%2Fc\" failed: <sig>aB%2Fc</sig> of s3cret";
        assert_eq!(
            scrubbed(text, whole),
            "GET \"the address\" failed: <sig>***</sig> of ***"
        );
    }
}
