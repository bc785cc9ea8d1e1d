//! Ops that go to all ranks as they are. A macro says how it finds what an op names. Of the operands
//! `r` is a buffer that is read, `c` one that is changed, `w` one that is written anew, `m` something packed, `o` something packed
//! that there may be, `p` parameters, `k` a cache that is changed, `s` one that is read, `l` a layer of it, and `v` a value. Absent:
//! ops that name buffers or packed things in lists.

/// An operand as one of several devices has it.
macro_rules! operand_at {
    ($at:ident r $of:expr) => {
        &$of.at($at)
    };
    ($at:ident u $of:expr) => {
        &$of.at($at)
    };
    ($at:ident c $of:expr) => {
        $of.at_mut($at)
    };
    ($at:ident w $of:expr) => {
        $of.at_mut($at)
    };
    ($at:ident m $of:expr) => {
        $of.at($at)
    };
    ($at:ident o $of:expr) => {
        $of.map(|of| of.at($at))
    };
    ($at:ident p $of:expr) => {
        &$of.with(|of| of.at($at))
    };
    ($at:ident k $of:expr) => {
        $of.at_mut($at)
    };
    ($at:ident s $of:expr) => {
        $of.at($at)
    };
    ($at:ident l $of:expr) => {
        $of
    };
    ($at:ident v $of:expr) => {
        $of
    };
}

macro_rules! delegated {
    ($run:ident) => {
        fn embed(&mut self, table: &Self::Matrix, scale: f32, out: &mut Self::Buffer) {
            $run!(self, embed(m table, v scale, w out));
        }

        fn add_embedding(&mut self, table: &Self::Matrix, ids: RowIds, out: &mut Self::Buffer) {
            $run!(self, add_embedding(m table, v ids, c out));
        }

        fn rms_norm(&mut self, x: &Self::Buffer, weight: &Self::Vector, eps: f32, out: &mut Self::Buffer) {
            $run!(self, rms_norm(r x, m weight, v eps, w out));
        }

        fn add_rms_norm(
            &mut self,
            residual: &mut Self::Buffer,
            x: &Self::Buffer,
            weight: &Self::Vector,
            eps: f32,
            out: &mut Self::Buffer,
        ) {
            $run!(self, add_rms_norm(c residual, r x, m weight, v eps, w out));
        }

        fn layer_norm(
            &mut self,
            x: &Self::Buffer,
            params: &LayerNormParams<&Self::Vector>,
            out: &mut Self::Buffer,
        ) {
            $run!(self, layer_norm(r x, p params, w out));
        }

        fn add_layer_norm(
            &mut self,
            residual: &mut Self::Buffer,
            x: &Self::Buffer,
            params: &LayerNormParams<&Self::Vector>,
            out: &mut Self::Buffer,
        ) {
            $run!(self, add_layer_norm(c residual, r x, p params, w out));
        }

        fn layer_norm_columns(
            &mut self,
            x: &mut Self::Buffer,
            columns: (usize, usize),
            params: &LayerNormParams<&Self::Vector>,
        ) {
            $run!(self, layer_norm_columns(c x, v columns, p params));
        }

        fn heads_matmul(&mut self, weights: &Self::Heads, x: &Self::Buffer, out: &mut Self::Buffer) {
            $run!(self, heads_matmul(m weights, r x, w out));
        }

        fn latent_to_cache(
            &mut self,
            latent: &mut Self::Buffer,
            queries: &mut Self::Buffer,
            params: &LatentParams<&Self::Vector>,
            kv: &mut Self::Kv,
            layer: usize,
        ) {
            $run!(self at kv layer, latent_to_cache(c latent, c queries, p params, k kv, l layer));
        }

        fn latent_attention(
            &mut self,
            queries: &Self::Buffer,
            heads_and_scale: (LatentHeads, f32),
            kv: &Self::Kv,
            layer: usize,
            out: &mut Self::Buffer,
        ) {
            $run!(self at kv layer, latent_attention(r queries, v heads_and_scale, s kv, l layer, w out));
        }

        fn convolve(
            &mut self,
            x: &mut Self::Buffer,
            params: &ConvolutionParams<&Self::Vector>,
            kv: &mut Self::Kv,
            layer: usize,
        ) {
            $run!(self at kv layer, convolve(c x, p params, k kv, l layer));
        }

        fn recur(
            &mut self,
            x: &Self::Buffer,
            params: &RecurrenceParams<&Self::Vector>,
            kv: &mut Self::Kv,
            layer: usize,
            out: &mut Self::Buffer,
        ) {
            $run!(self at kv layer, recur(r x, p params, k kv, l layer, w out));
        }

        fn gate_output(
            &mut self,
            gate: &Self::Buffer,
            params: &OutputGateParams<&Self::Vector>,
            out: &mut Self::Buffer,
        ) {
            $run!(self, gate_output(r gate, p params, c out));
        }
    };
}
