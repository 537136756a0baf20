//! The decoder over the wire, and the functions of single values.

use std::sync::Arc;

use ballista_core::serde::BallistaPhysicalExtensionCodec;
use cofi_sql::scalar_functions;
use datafusion::common::{DataFusionError, Result, exec_datafusion_err, exec_err};
use datafusion::execution::TaskContext;
use datafusion::logical_expr::ScalarUDF;
use datafusion::physical_plan::ExecutionPlan;
use datafusion_proto::physical_plan::{PhysicalExtensionCodec, PhysicalProtoConverterExtension};

use crate::operator::{Decoder, Order};
use crate::recordings::Opened;

/// With this a decoder begins; then comes the version, and behind a NUL the order. Ballista's own operators are protobuf messages with a field of a
/// low number at the beginning, which this is not.
const MAGIC: &[u8] = b"\xffcofi ";
/// Rows may depend on the version: all of a cluster have the same.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Puts decoders into bytes and back, and everything else as Ballista does.
#[derive(Debug)]
pub(crate) struct Codec {
    opened: Arc<Opened>,
    rest: BallistaPhysicalExtensionCodec,
}

impl Codec {
    /// Decoders that it makes open recordings there.
    pub(crate) fn new(opened: Arc<Opened>) -> Self {
        Self {
            opened,
            rest: BallistaPhysicalExtensionCodec::default(),
        }
    }
}

fn external(error: serde_json::Error) -> DataFusionError {
    DataFusionError::External(Box::new(error))
}

impl PhysicalExtensionCodec for Codec {
    fn try_decode(
        &self,
        bytes: &[u8],
        inputs: &[Arc<dyn ExecutionPlan>],
        context: &TaskContext,
        converter: &dyn PhysicalProtoConverterExtension,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let Some(rest) = bytes.strip_prefix(MAGIC) else {
            return self.rest.try_decode(bytes, inputs, context, converter);
        };
        let mut halves = rest.splitn(2, |byte| *byte == 0);
        let version = halves.next().unwrap_or_default();
        if version != VERSION.as_bytes() {
            let version = String::from_utf8_lossy(version);
            return exec_err!("the plan is of cofi-cluster {version}, and this is {VERSION}");
        }
        let order: Order =
            serde_json::from_slice(halves.next().unwrap_or_default()).map_err(external)?;
        let [splits] = inputs else {
            return exec_err!("a decoder has one input, and not {}", inputs.len());
        };
        let decoder = Decoder::new(Arc::new(order), splits.clone(), self.opened.clone())?;
        Ok(Arc::new(decoder))
    }

    fn try_encode(
        &self,
        node: Arc<dyn ExecutionPlan>,
        bytes: &mut Vec<u8>,
        converter: &dyn PhysicalProtoConverterExtension,
    ) -> Result<()> {
        let Some(decoder) = node.downcast_ref::<Decoder>() else {
            return self.rest.try_encode(node, bytes, converter);
        };
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(VERSION.as_bytes());
        bytes.push(0);
        serde_json::to_writer(bytes, decoder.order()).map_err(external)
    }

    fn try_decode_udf(&self, name: &str, _: &[u8]) -> Result<Arc<ScalarUDF>> {
        let mut all = scalar_functions().into_iter();
        let found = all.find(|function| function.name() == name);
        let missing = || exec_datafusion_err!("there is no function {name}");
        Ok(Arc::new(found.ok_or_else(missing)?))
    }
}
