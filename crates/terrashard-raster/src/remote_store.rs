//! The object store or web server that an address names.

use std::fmt;
use std::sync::Once;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::http::HttpBuilder;
use object_store::path::Path as Place;
use object_store::{
    ClientConfigKey, ClientOptions, ObjectStore, ObjectStoreScheme, Result, RetryConfig,
};
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderValue};
use url::Url;

/// Requests that are tried again at most, however much patience is left.
const RETRIES: usize = 8;
const CONNECT: Duration = Duration::from_secs(5);

fn refused(what: impl fmt::Display) -> object_store::Error {
    object_store::Error::Generic {
        store: "address",
        source: what.to_string().into(),
    }
}

/// The store of an address and the place in it. What gives access to `s3`, `gs` and `az` is in the environment, under the
/// names that object_store reads (`AWS_ACCESS_KEY_ID`, `GOOGLE_APPLICATION_CREDENTIALS`, `AZURE_STORAGE_SAS_KEY` and so
/// on); for `http` and `https` it is in the address.
pub(crate) fn store_of(address: &str, patience: Duration) -> Result<(Box<dyn ObjectStore>, Place)> {
    static TLS: Once = Once::new();
    // An embedding program may have chosen one already, which is as good.
    TLS.call_once(|| drop(rustls::crypto::ring::default_provider().install_default()));
    let url = Url::parse(address).map_err(refused)?;
    let retry = RetryConfig {
        max_retries: RETRIES,
        retry_timeout: patience,
        ..RetryConfig::default()
    };
    let waits = [
        (ClientConfigKey::ConnectTimeout, CONNECT.min(patience)),
        // Between two parts of an answer; and for the whole of it.
        (ClientConfigKey::ReadTimeout, patience / 4),
        (ClientConfigKey::Timeout, patience),
    ];
    let waits = waits.map(|(key, wait)| (key, format!("{}ms", wait.as_millis())));
    if matches!(url.scheme(), "http" | "https") {
        return web_server(url, retry, waits);
    }
    let (scheme, place) = ObjectStoreScheme::parse(&url).map_err(refused)?;
    let store: Box<dyn ObjectStore> = match scheme {
        ObjectStoreScheme::AmazonS3 => {
            let builder = AmazonS3Builder::from_env().with_url(address);
            let set = |builder: AmazonS3Builder, (key, value)| {
                builder.with_config(AmazonS3ConfigKey::Client(key), value)
            };
            let builder = waits.into_iter().fold(builder, set);
            Box::new(builder.with_retry(retry).build()?)
        }
        ObjectStoreScheme::GoogleCloudStorage => {
            let builder = GoogleCloudStorageBuilder::from_env().with_url(address);
            let set = |builder: GoogleCloudStorageBuilder, (key, value)| {
                builder.with_config(GoogleConfigKey::Client(key), value)
            };
            let builder = waits.into_iter().fold(builder, set);
            Box::new(builder.with_retry(retry).build()?)
        }
        ObjectStoreScheme::MicrosoftAzure => {
            let builder = MicrosoftAzureBuilder::from_env().with_url(address);
            let set = |builder: MicrosoftAzureBuilder, (key, value)| {
                builder.with_config(AzureConfigKey::Client(key), value)
            };
            let builder = waits.into_iter().fold(builder, set);
            Box::new(builder.with_retry(retry).build()?)
        }
        _ => return Err(refused("this kind of address is not read")),
    };
    Ok((store, place))
}

/// A signed address is signed letter by letter, so that its path and query are sent as they are.
fn web_server(
    mut url: Url,
    retry: RetryConfig,
    waits: [(ClientConfigKey, String); 3],
) -> Result<(Box<dyn ObjectStore>, Place)> {
    let mut options = ClientOptions::new().with_allow_http(url.scheme() == "http");
    for (key, value) in waits {
        options = options.with_config(key, value);
    }
    if !url.username().is_empty() || url.password().is_some() {
        let user = decoded(url.username());
        let password = decoded(url.password().unwrap_or_default());
        let packed = STANDARD.encode([user, password].join(&b':'));
        let mut value = HeaderValue::from_str(&format!("Basic {packed}")).map_err(refused)?;
        value.set_sensitive(true);
        options = options.with_default_headers(HeaderMap::from_iter([(AUTHORIZATION, value)]));
        let cleared = url.set_username("").and_then(|()| url.set_password(None));
        cleared.map_err(|()| refused("no host"))?;
    }
    url.set_fragment(None);
    let builder = HttpBuilder::new().with_url(url).with_retry(retry);
    let store = builder.with_client_options(options).build()?;
    Ok((Box::new(store), Place::default()))
}

/// Bytes that stand as `%` and two digits.
fn decoded(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, behind @ ..] = rest {
        let digits = behind.get(..2).and_then(|two| str::from_utf8(two).ok());
        let code = digits.and_then(|two| u8::from_str_radix(two, 16).ok());
        match code.filter(|_| *first == b'%') {
            Some(code) => {
                bytes.push(code);
                rest = &behind[2..];
            }
            None => {
                bytes.push(*first);
                rest = behind;
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_password_may_hold_any_character() {
        assert_eq!(super::decoded("p%40ss%2f%3A%"), b"p@ss/:%");
        assert_eq!(super::decoded("100%25"), b"100%");
    }
}
