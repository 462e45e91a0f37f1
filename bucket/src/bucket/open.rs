//! Opening a bucket by its URL.

use std::sync::Arc;

use object_store::ObjectStore;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use tokio::runtime::Builder;
use tokio::sync::Semaphore;
use url::Url;

use super::{Bucket, N_PARALLEL, Reached};
use crate::error::BucketError;

/// Why a URL with credentials or a query is refused.
const CREDENTIALS: &str =
    "credentials and queries do not belong in the URL; set them in the environment";

impl Bucket {
    /// Opens the bucket at a URL. A folder, `file://`, need not be there.
    ///
    /// Credentials come from the environment or the machine's role. A URL with some is refused,
    /// since URLs get into logs.
    pub fn open(url: &str) -> Result<Self, BucketError> {
        // Without what may be a secret.
        let shown = shown(url);
        let refused = |reason: String| BucketError::Refused { place: shown.clone(), reason };
        let example = "expected a URL such as file:///srv/graph, s3://bucket/graph, gs://bucket/graph \
                       or az://container/graph";
        // A secret may keep the URL from being parsed.
        if url.contains('@') {
            return Err(refused(CREDENTIALS.to_owned()));
        }
        let parsed = Url::parse(url).map_err(|error| refused(format!("{error}; {example}")))?;
        if parsed.query().is_some() {
            return Err(refused(CREDENTIALS.to_owned()));
        }
        let (store, prefix) = if parsed.scheme() == "file" {
            let dir = parsed.to_file_path().map_err(|()| refused(example.to_owned()))?;
            let prefix =
                Path::from_absolute_path(&dir).map_err(|error| refused(error.to_string()))?;
            // Durable when a write returns; folders are made as they are needed.
            (Arc::new(LocalFileSystem::new().with_fsync(true)) as Arc<dyn ObjectStore>, prefix)
        } else {
            cloud(&parsed).map_err(refused)?
        };
        Self::over(shown, store, prefix)
    }

    /// Returns a bucket over a store, below `prefix`.
    pub(crate) fn over(
        url: String,
        store: Arc<dyn ObjectStore>,
        prefix: Path,
    ) -> Result<Self, BucketError> {
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| BucketError::Runtime(error.to_string()))?;
        let chunks = Box::new(Semaphore::new(N_PARALLEL));
        Ok(Self { url, store, prefix, runtime, reached: Reached::now(), chunks })
    }
}

/// Returns a URL without credentials, which end at the last `@`, query and trailing slash.
fn shown(url: &str) -> String {
    let rest = url.rsplit_once('@').map_or(url, |(_, rest)| rest);
    let rest = rest.split(['?', '#']).next().unwrap_or_default().trim_end_matches('/');
    match url.split_once("://") {
        Some((scheme, _)) if url.contains('@') => format!("{scheme}://{rest}"),
        _ => rest.to_owned(),
    }
}

#[cfg(not(feature = "cloud"))]
fn cloud(_: &Url) -> Result<(Arc<dyn ObjectStore>, Path), String> {
    Err("this build knows file:// only; build it with object storage".to_owned())
}

#[cfg(feature = "cloud")]
fn cloud(url: &Url) -> Result<(Arc<dyn ObjectStore>, Path), String> {
    use object_store::aws::AmazonS3Builder;
    use object_store::azure::MicrosoftAzureBuilder;
    use object_store::gcp::GoogleCloudStorageBuilder;
    use object_store::http::HttpBuilder;
    use object_store::{ObjectStoreScheme, RetryConfig};

    let text = |error: object_store::Error| super::without_queries(&error.to_string());
    // Fails if one is installed already, by the same crate.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let retry = RetryConfig {
        max_retries: 8,
        retry_timeout: std::time::Duration::from_secs(60),
        ..RetryConfig::default()
    };
    let (scheme, prefix) = ObjectStoreScheme::parse(url).map_err(|error| error.to_string())?;
    let store: Arc<dyn ObjectStore> = match scheme {
        ObjectStoreScheme::AmazonS3 => {
            let builder = AmazonS3Builder::from_env().with_url(url.as_str()).with_retry(retry);
            Arc::new(builder.build().map_err(text)?)
        }
        ObjectStoreScheme::GoogleCloudStorage => {
            let builder = GoogleCloudStorageBuilder::from_env().with_url(url.as_str());
            Arc::new(builder.with_retry(retry).build().map_err(text)?)
        }
        ObjectStoreScheme::MicrosoftAzure => {
            let builder = MicrosoftAzureBuilder::from_env().with_url(url.as_str());
            Arc::new(builder.with_retry(retry).build().map_err(text)?)
        }
        ObjectStoreScheme::Http => {
            let root = &url[..url::Position::BeforePath];
            Arc::new(HttpBuilder::new().with_url(root).with_retry(retry).build().map_err(text)?)
        }
        _ => return Err("expected file://, s3://, gs://, az:// or https://".to_owned()),
    };
    Ok((store, prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_with_secrets_and_without_sense_are_refused_without_repeating_them() {
        for url in [
            "s3://key:SECRET@bucket/graph",
            "s3://key:a/SECRET+b/c@bucket/graph",
            "s3://12/SECRET@bucket/graph",
            "https://host/g?sig=SECRET",
            "SECRET//x",
        ] {
            let message = Bucket::open(url).unwrap_err().to_string();
            assert!(!message.contains("SECRET") || url.starts_with("SECRET"), "{message}");
            assert!(
                message.contains("credentials") || message.contains("expected a URL"),
                "{message}"
            );
        }
        assert_eq!(shown("s3://key:p@bucket/graph/"), "s3://bucket/graph");
        assert_eq!(shown("s3://key:p/q@bucket/graph?x"), "s3://bucket/graph");
        assert_eq!(shown("file:///srv/graph/"), "file:///srv/graph");
    }
}
