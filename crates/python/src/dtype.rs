//! The names, codes and formats under which Python knows dtypes.

use dlpark::ffi::DLDataType;
use pyo3::prelude::*;
use sheave_base::{Error, ErrorKind, Result};
use sheave_tensor::Dtype;

/// A dtype and how others call it.
struct Known {
    dtype: Dtype,
    name: &'static str,
    /// Format of the buffer protocol; none where it has no word for the dtype.
    format: Option<&'static std::ffi::CStr>,
    dlpack: DLDataType,
}

const fn known(dtype: Dtype, name: &'static str, format: Option<&'static std::ffi::CStr>, dlpack: DLDataType) -> Known {
    Known { dtype, name, format, dlpack }
}

const TABLE: [Known; 17] = [
    known(Dtype::Bool, "bool", Some(c"?"), DLDataType::BOOL),
    known(Dtype::U8, "uint8", Some(c"B"), DLDataType::U8),
    known(Dtype::I8, "int8", Some(c"b"), DLDataType::I8),
    known(Dtype::I16, "int16", Some(c"h"), DLDataType::I16),
    known(Dtype::I32, "int32", Some(c"i"), DLDataType::I32),
    known(Dtype::I64, "int64", Some(c"q"), DLDataType::I64),
    known(Dtype::F16, "float16", Some(c"e"), DLDataType::F16),
    known(Dtype::Bf16, "bfloat16", None, DLDataType::BF16),
    known(Dtype::F32, "float32", Some(c"f"), DLDataType::F32),
    known(Dtype::F64, "float64", Some(c"d"), DLDataType::F64),
    known(Dtype::Complex64, "complex64", Some(c"Zf"), DLDataType::C64),
    known(Dtype::Complex128, "complex128", Some(c"Zd"), DLDataType::C128),
    known(Dtype::Fp8E4M3, "float8_e4m3fn", None, DLDataType::F8E4M3FN),
    known(Dtype::Fp8E5M2, "float8_e5m2", None, DLDataType::F8E5M2),
    known(Dtype::U16, "uint16", Some(c"H"), DLDataType::U16),
    known(Dtype::U32, "uint32", Some(c"I"), DLDataType::U32),
    known(Dtype::U64, "uint64", Some(c"Q"), DLDataType::U64),
];

fn entry(dtype: Dtype) -> &'static Known {
    // The table is in the order of the codes.
    &TABLE[usize::from(dtype.code())]
}

/// The name that numpy, torch and jax use.
pub(crate) fn name(dtype: Dtype) -> &'static str {
    entry(dtype).name
}

/// Format of the buffer protocol, if it has one.
pub(crate) fn format(dtype: Dtype) -> Option<&'static std::ffi::CStr> {
    entry(dtype).format
}

/// Descriptor of DLPack.
pub(crate) fn to_dlpack(dtype: Dtype) -> DLDataType {
    entry(dtype).dlpack
}

/// The dtype of a descriptor of DLPack.
pub(crate) fn from_dlpack(dlpack: DLDataType) -> Result<Dtype> {
    let found = TABLE.iter().find(|known| known.dlpack.matches(dlpack));
    found.map(|known| known.dtype).ok_or_else(|| {
        unsupported(&format!("DLPack type code {} with {} bits and {} lanes", dlpack.code.0, dlpack.bits, dlpack.lanes))
    })
}

/// The dtype of a buffer's format and element size. Sizes are the exporter's, so `l` is what it is on this machine.
pub(crate) fn from_format(format: &std::ffi::CStr, item_bytes: usize) -> Result<Dtype> {
    let native = if cfg!(target_endian = "little") { b'<' } else { b'>' };
    let code = match format.to_bytes() {
        [first, code @ ..] if *first == b'@' || *first == b'=' || *first == native => code,
        code => code,
    };
    let dtype = match (code, item_bytes) {
        (b"?", 1) => Dtype::Bool,
        (b"B" | b"c", 1) => Dtype::U8,
        (b"b", 1) => Dtype::I8,
        (b"H" | b"I" | b"L" | b"Q" | b"N", 2) => Dtype::U16,
        (b"H" | b"I" | b"L" | b"Q" | b"N", 4) => Dtype::U32,
        (b"H" | b"I" | b"L" | b"Q" | b"N", 8) => Dtype::U64,
        (b"h" | b"i" | b"l" | b"q" | b"n", 2) => Dtype::I16,
        (b"h" | b"i" | b"l" | b"q" | b"n", 4) => Dtype::I32,
        (b"h" | b"i" | b"l" | b"q" | b"n", 8) => Dtype::I64,
        (b"e", 2) => Dtype::F16,
        (b"f", 4) => Dtype::F32,
        (b"d", 8) => Dtype::F64,
        (b"Zf", 8) => Dtype::Complex64,
        (b"Zd", 16) => Dtype::Complex128,
        _ => return Err(unsupported(&format!("the buffer format {:?}", format.to_string_lossy()))),
    };
    Ok(dtype)
}

/// The dtype that an argument names: a string, or a dtype of numpy, torch, jax or ml_dtypes.
pub(crate) fn from_python(argument: &Bound<'_, PyAny>) -> PyResult<Result<Dtype>> {
    let text: String = match argument.extract() {
        Ok(text) => text,
        Err(_) => {
            let named = argument.getattr("name").or_else(|_| argument.getattr("__name__"));
            named.or_else(|_| argument.str().map(Bound::into_any))?.extract()?
        }
    };
    let text = text.strip_prefix("torch.").unwrap_or(&text);
    let text = match text {
        "float" => "float64",
        "int" => "int64",
        "complex" => "complex128",
        other => other,
    };
    let found = TABLE.iter().find(|known| known.name == text || known.dtype.name() == text);
    Ok(found.map(|known| known.dtype).ok_or_else(|| unsupported(&format!("the dtype {text:?}"))))
}

fn unsupported(what: &str) -> Error {
    let names: Vec<_> = TABLE.iter().map(|known| known.name).collect();
    Error::new(ErrorKind::Unsupported, format!("{what} is not a dtype of tensors"))
        .hint(format!("convert to one of {}", names.join(", ")))
}
