//! How an error is written where it travels to another node: the one codec of errors, for all services.
//!
//! An error is written with its causes in a list behind it, not inside each other, so that whoever reads it never
//! recurses. It is written as it is: no error is longer than [`bounds`] lets it be. What is read comes from a peer and
//! is held against the same bounds, each length before anything is allocated for it, and each link of the list before
//! the next one is read. So no input makes this allocate more than a small multiple of its own length, and what is read
//! could have been written by an honest node.
//!
//! An error without causes takes three bytes more than its own fields: that it has no details, that nothing is left out
//! before it, and that its list of causes is empty.

use super::{Detail, Error, Inner, bounds};
use crate::limits;
use serde::de::{self, Deserializer, SeqAccess, Visitor};
use serde::ser::Serializer;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

impl Serialize for Error {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        #[serde(rename = "Error")]
        struct Written<'a> {
            error: &'a Inner,
            causes: CausesOf<'a>,
        }

        Written { error: &self.0, causes: CausesOf(self) }.serialize(serializer)
    }
}

struct CausesOf<'a>(&'a Error);

impl Serialize for CausesOf<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeSeq;

        let mut list = serializer.serialize_seq(Some(self.0.causes().count()))?;
        self.0.causes().try_for_each(|cause| list.serialize_element(&*cause.0))?;
        list.end()
    }
}

impl<'de> Deserialize<'de> for Error {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(rename = "Error")]
        struct Read {
            error: Inner,
            causes: Causes,
        }

        let Read { error, causes: Causes(causes) } = Read::deserialize(deserializer)?;
        let details = std::iter::once(&error).chain(&causes).filter_map(|link| link.detail.as_deref());
        let counted_bytes: usize = details.map(Detail::counted_bytes).sum();
        if counted_bytes > limits::ERROR_DETAILS_BYTES_MAX {
            return Err(too_long("the details of an error", counted_bytes, limits::ERROR_DETAILS_BYTES_MAX));
        }
        let cause = causes.into_iter().rev().fold(None, |cause, link| Some(Self(Arc::new(Inner { cause, ..link }))));
        Ok(Self(Arc::new(Inner { cause, ..error })))
    }
}

#[cold]
fn too_long<E: de::Error>(what: &str, bytes: usize, bytes_max: usize) -> E {
    E::custom(format_args!("{what} of {bytes} bytes; the limit is {bytes_max}"))
}

/// The causes of an error, as many as there may be.
struct Causes(Vec<Inner>);

impl<'de> Deserialize<'de> for Causes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct List;

        impl<'de> Visitor<'de> for List {
            type Value = Causes;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "at most {} causes of an error", limits::ERROR_CAUSES_MAX)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Causes, A::Error> {
                if let Some(count) = list.size_hint().filter(|count| *count > limits::ERROR_CAUSES_MAX) {
                    return Err(de::Error::invalid_length(count, &self));
                }
                let mut causes = Vec::new();
                while let Some(cause) = list.next_element()? {
                    if causes.len() == limits::ERROR_CAUSES_MAX {
                        return Err(de::Error::invalid_length(causes.len() + 1, &self));
                    }
                    causes.push(cause);
                }
                Ok(Causes(causes))
            }
        }

        deserializer.deserialize_seq(List)
    }
}

/// A text of at most so many bytes. Its length is looked at before it is copied.
struct Text<const BYTES_MAX: usize>(String);

impl<'de, const BYTES_MAX: usize> Deserialize<'de> for Text<BYTES_MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Bounded<const BYTES_MAX: usize>;

        impl<const BYTES_MAX: usize> Visitor<'_> for Bounded<BYTES_MAX> {
            type Value = Text<BYTES_MAX>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a text of at most {BYTES_MAX} bytes")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
                if text.len() > BYTES_MAX {
                    return Err(too_long("a text of an error", text.len(), BYTES_MAX));
                }
                Ok(Text(text.to_owned()))
            }
        }

        deserializer.deserialize_str(Bounded)
    }
}

/// Reads what happened.
pub(super) fn text<'de, D: Deserializer<'de>, T: From<String>>(deserializer: D) -> Result<T, D::Error> {
    Text::<{ bounds::TEXT }>::deserialize(deserializer).map(|text| T::from(text.0))
}

/// Reads a hint.
pub(super) fn optional_text<'de, D: Deserializer<'de>, T: From<String>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    Option::<Text<{ bounds::TEXT }>>::deserialize(deserializer).map(|text| text.map(|text| T::from(text.0)))
}

/// Reads a traceback or last lines.
pub(super) fn long_text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    Text::<{ limits::ERROR_LONG_TEXT_BYTES_MAX }>::deserialize(deserializer).map(|text| text.0)
}

/// Reads a name.
pub(super) fn name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    Text::<{ bounds::NAME }>::deserialize(deserializer).map(|text| text.0)
}

/// Reads a name that may be unknown.
pub(super) fn optional_name<'de, D: Deserializer<'de>, T: From<String>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    Option::<Text<{ bounds::NAME }>>::deserialize(deserializer).map(|text| text.map(|text| T::from(text.0)))
}

/// Reads a pickled exception, which is none of ours to open.
pub(super) fn pickled<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<u8>>, D::Error> {
    struct Bytes(Vec<u8>);

    impl<'de> Deserialize<'de> for Bytes {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            struct List;

            impl<'de> Visitor<'de> for List {
                type Value = Bytes;

                fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    write!(f, "a pickled exception of at most {} bytes", limits::ERROR_PICKLED_BYTES_MAX)
                }

                fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Bytes, A::Error> {
                    let announced = list.size_hint().unwrap_or(0);
                    if announced > limits::ERROR_PICKLED_BYTES_MAX {
                        return Err(too_long("a pickled exception", announced, limits::ERROR_PICKLED_BYTES_MAX));
                    }
                    // Nothing is reserved for what is only announced.
                    let mut bytes = Vec::new();
                    while let Some(byte) = list.next_element()? {
                        if bytes.len() == limits::ERROR_PICKLED_BYTES_MAX {
                            return Err(de::Error::invalid_length(bytes.len() + 1, &self));
                        }
                        bytes.push(byte);
                    }
                    Ok(Bytes(bytes))
                }
            }

            deserializer.deserialize_seq(List)
        }
    }

    Option::<Bytes>::deserialize(deserializer).map(|bytes| bytes.map(|bytes| bytes.0))
}

/// Details are shared by the copies of an error, and written as they are.
pub(super) mod shared {
    use super::{Arc, Deserialize, Deserializer, Detail, Serialize, Serializer};

    pub(in super::super) fn serialize<S: Serializer>(
        detail: &Option<Arc<Detail>>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        detail.as_deref().serialize(serializer)
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Arc<Detail>>, D::Error> {
        Option::<Detail>::deserialize(deserializer).map(|detail| detail.map(Arc::new))
    }
}
