//! Ops of encoders: rows of whole sequences, without a cache.

use super::attention::attention_grid;
use super::*;
use hanzo_engine_ops::{HeadShape, PositionBias, SelfAttentionParams};

impl<D: Device> CudaBackend<D> {
    pub(super) fn unfold(&mut self, x: &CudaBuffer<D>, window: usize, out: &mut CudaBuffer<D>) {
        assert!(window % 2 == 1, "a window has a middle");
        self.check(out, x.cols * window, "out");
        let mut ops = self.ops();
        let params = UnfoldParams {
            batch: ops.batch,
            x: x.memory.address(),
            out: out.memory.address(),
            cols: x.cols as u32,
            window: window as u32,
        };
        let grid = Grid { blocks: [ops.bucket.rows, 1, 1], threads: THREADS, shared_bytes: 0 };
        ops.push(Kernel::Unfold, grid, &params, &[&x.memory, &out.memory]);
    }

    pub(super) fn rope(&mut self, qkv: &mut CudaBuffer<D>, params: &QkvParams<&CudaVector<D>>) {
        assert!(!params.queries_alone, "queries alone, and no cache that has their keys");
        // No query scale here, and values stay.
        let params = QkvParams {
            shape: params.shape,
            q_norm: params.q_norm,
            k_norm: params.k_norm,
            norm_eps: params.norm_eps,
            norm_after_rope: params.norm_after_rope,
            rope: params
                .rope
                .as_ref()
                .map(|rope| hanzo_engine_ops::Rope { inv_freq: rope.inv_freq, ..*rope }),
            ..QkvParams::plain(params.shape)
        };
        self.turn_heads(qkv, &params, None);
    }

    pub(super) fn self_attention(
        &mut self,
        qkv: &CudaBuffer<D>,
        params: &SelfAttentionParams<&CudaVector<D>, &[u32]>,
        out: &mut CudaBuffer<D>,
    ) {
        let HeadShape { heads, kv_heads, head_dim } = params.heads;
        self.check(qkv, params.heads.qkv_width(), "qkv");
        self.check(out, params.heads.q_width(), "out");
        assert!(heads.is_multiple_of(kv_heads), "{:?}: key-value heads divide the heads", params.heads);
        assert_eq!(params.padding, 0, "padding, of a device that knows no memories");
        let (bias, table, queries, reach, buckets) = match params.bias {
            PositionBias::None => (0, None, None, 0, None),
            PositionBias::Alibi { slopes } => {
                assert_eq!(slopes.length, heads, "one slope a head");
                (1, Some(slopes), None, 0, None)
            }
            PositionBias::ByDistance { table, reach } => {
                assert_eq!(table.length, heads * (2 * reach as usize + 1), "one bias a head and distance");
                (2, Some(table), None, reach, None)
            }
            PositionBias::Disentangled { keys, queries, buckets, bucket_of, reach } => {
                assert_eq!(bucket_of.len(), 2 * reach as usize + 1, "one bucket a distance");
                assert!(bucket_of.iter().all(|&bucket| bucket < buckets), "a bucket of more than {buckets}");
                let rows = buckets as usize * params.heads.q_width();
                assert!(
                    [keys, queries].into_iter().flatten().all(|of| of.length == rows),
                    "one row a bucket"
                );
                (3, keys, queries, reach, Some(bucket_of))
            }
        };
        let bucket_of = match buckets.map(|buckets| self.bucket_table(buckets)) {
            Some(None) => return,
            Some(table) => table,
            None => None,
        };
        let mut ops = self.ops();
        let whole = WholeAttentionParams {
            batch: ops.batch,
            qkv: qkv.memory.address(),
            out: out.memory.address(),
            table: address_of(table.map(|table| &table.memory)),
            queries: address_of(queries.map(|queries| &queries.memory)),
            bucket_of: address_of(bucket_of.as_ref()),
            heads: heads as u32,
            kv_heads: kv_heads as u32,
            head_dim: head_dim as u32,
            bias,
            reach: params.reach.unwrap_or(NONE),
            bias_reach: reach,
            scale: params.scale,
            unused: 0,
        };
        let mut holds = vec![&qkv.memory, &out.memory];
        holds.extend([table, queries].into_iter().flatten().map(|of| &of.memory));
        holds.extend(bucket_of.as_ref());
        let grid = attention_grid(ops.bucket.rows, heads, head_dim, head_dim);
        ops.push(Kernel::AttentionWhole, grid, &whole, &holds);
    }
}
