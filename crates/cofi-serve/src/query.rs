//! What the page asks, as it stands in addresses.

use std::collections::HashMap;

use axum::http::StatusCode;
use serde_json::{Value, json};

/// A question that has no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ApiError {
    /// There is no such question, or nothing of that name.
    Unknown(String),
    /// It is not asked as it should be.
    Wrong(String),
    /// The index is not there yet, or cannot be.
    NotReady(String),
}

impl ApiError {
    pub(crate) const fn status(&self) -> StatusCode {
        match self {
            Self::Unknown(_) => StatusCode::NOT_FOUND,
            Self::Wrong(_) => StatusCode::BAD_REQUEST,
            Self::NotReady(_) => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    pub(crate) fn to_json(&self) -> Value {
        let (Self::Unknown(text) | Self::Wrong(text) | Self::NotReady(text)) = self;
        json!({"error": text})
    }
}

/// The words behind the question mark.
#[derive(Clone, Debug, Default)]
pub(crate) struct Query(HashMap<String, String>);

impl Query {
    pub(crate) fn parse(text: &str) -> Self {
        let pairs = form_urlencoded::parse(text.as_bytes());
        Self(pairs.into_owned().collect())
    }

    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    pub(crate) fn text(&self, name: &str) -> Result<&str, ApiError> {
        let found = self.get(name);
        found.ok_or_else(|| ApiError::Wrong(format!("{name} is missing")))
    }

    /// A number, or what holds without one.
    pub(crate) fn number_or(&self, name: &str, without: u64) -> Result<u64, ApiError> {
        match self.get(name) {
            None => Ok(without),
            Some(text) => {
                let wrong = |_| ApiError::Wrong(format!("{name}: {text:?} is no number"));
                text.parse().map_err(wrong)
            }
        }
    }

    pub(crate) fn number(&self, name: &str) -> Result<u64, ApiError> {
        self.text(name)?;
        self.number_or(name, 0)
    }

    pub(crate) fn index(&self, name: &str, without: u64) -> Result<usize, ApiError> {
        let number = self.number_or(name, without)?;
        usize::try_from(number).map_err(|_| ApiError::Wrong(format!("{name}: too large")))
    }
}
