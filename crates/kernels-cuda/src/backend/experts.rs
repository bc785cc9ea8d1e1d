//! Mixtures of experts: split-precision products expert by expert (`pairs.rs`), others pair by pair. The types of all
//! experts decide which, never the batch.

use super::pairs::Pairs;
use super::*;
use hanzo_engine_ops::{ExpertGroups, ExpertScoring, MoeOperands};

impl<D: Device> CudaBackend<D> {
    pub(super) fn mix_experts(
        &mut self,
        weights: &MoeWeights<'_, Self>,
        params: &MoeParams,
        x: &CudaBuffer<D>,
        hidden: &mut CudaBuffer<D>,
        out: &mut CudaBuffer<D>,
    ) {
        let MoeOperands { router, experts, .. } = *weights;
        let (count, used, limits) = (router.rows(), params.experts_used, self.steps.limits());
        experts.check();
        params.check(count);
        assert!(
            count <= limits.experts && used <= limits.experts_used,
            "more experts than the step's limits"
        );
        let parts = if params.gated { 2 } else { 1 };
        assert_eq!(
            (experts.count, experts.cols, experts.up_rows),
            (count, router.cols(), parts * experts.ffn),
            "an expert for each row of the router, as wide"
        );
        let routed = weights.routed.unwrap_or(x);
        self.check(routed, router.cols(), "routed");
        self.check(x, router.cols(), "x");
        self.check(out, router.cols(), "out");
        self.check(hidden, used * experts.ffn, "hidden");
        let lengths = |of: Option<&CudaVector<D>>, length: usize| of.is_none_or(|of| of.length == length);
        let of_experts = [weights.router_bias, weights.correction, weights.expert_scale];
        assert!(of_experts.into_iter().all(|of| lengths(of, count)), "one an expert");
        assert!(lengths(weights.up_bias, count * experts.up_rows), "a bias for each of the first products");
        assert!(lengths(weights.down_bias, count * router.cols()), "a bias for each output of an expert");

        let Scratch { scores, chosen, weights: shares, pairs, pieces, .. } = self.scratch();
        let [scores, chosen, shares, pairs, pieces] = [scores, chosen, shares, pairs, pieces].map(Arc::clone);
        let limits = *self.steps.limits();
        let into = MemoryRows { memory: &scores, first: 0, cols: count };
        self.product(router, &Product { bias: weights.router_bias, out: into, ..Product::of(routed, out) });
        let mut ops = self.ops();
        let groups = params.groups.unwrap_or(ExpertGroups { count: 0, used: 0, best: 1 });
        let route = RouteParams {
            batch: ops.batch,
            scores: scores.address(),
            correction: address_of(weights.correction.map(|of| &of.memory)),
            expert_scale: address_of(weights.expert_scale.map(|of| &of.memory)),
            chosen: chosen.address(),
            weights: shares.address(),
            experts: count as u32,
            used: used as u32,
            softmax: u32::from(params.scoring != ExpertScoring::Sigmoid),
            normalized: u32::from(params.normalized),
            scale: params.scale,
            by_weight: u32::from(params.chooses_by_weight(weights.correction.is_some())),
            groups: groups.count as u32,
            groups_used: groups.used as u32,
            best: groups.best as u32,
            reach: match params.scoring {
                ExpertScoring::Near { reach } => reach,
                _ => 0.0,
            },
        };
        let rows = ops.bucket.rows;
        let room = 4 * (2 * count + groups.count) as u32;
        let mut holds = vec![&scores, &chosen, &shares];
        holds.extend([weights.correction, weights.expert_scale].into_iter().flatten().map(|of| &of.memory));
        ops.push(
            Kernel::Route,
            Grid { blocks: [rows, 1, 1], threads: WARP, shared_bytes: room },
            &route,
            &holds,
        );

        let expert = ExpertParams {
            batch: ops.batch,
            experts: experts.memory.address(),
            chosen: chosen.address(),
            weights: shares.address(),
            x: x.memory.address(),
            hidden: hidden.memory.address(),
            out: out.memory.address(),
            up_bias: address_of(weights.up_bias.map(|of| &of.memory)),
            down_bias: address_of(weights.down_bias.map(|of| &of.memory)),
            used: used as u32,
            cols: router.cols() as u32,
            ffn: experts.ffn as u32,
            gated: u32::from(params.gated),
            activation: activation_code(params.activation),
            scales_input: u32::from(params.scales_input),
        };
        let mut holds = vec![&chosen, &shares, &x.memory, &hidden.memory, &out.memory];
        holds.extend([weights.up_bias, weights.down_bias].into_iter().flatten().map(|of| &of.memory));
        holds.extend(experts.memories());
        let (up, down) = (experts.up.pieces, experts.down.pieces);
        // One warp for each output, pair by pair.
        let blocks_up = [expert.ffn.div_ceil(WARPS), rows, expert.used];
        let blocks_down = [expert.cols.div_ceil(WARPS), rows, 1];
        let [grid_up, grid_down] =
            [blocks_up, blocks_down].map(|blocks| Grid { blocks, threads: THREADS, shared_bytes: 0 });
        if up.is_none() && down.is_none() {
            ops.push(Kernel::ExpertUp, grid_up, &expert, &holds);
            ops.push(Kernel::ExpertDown, grid_down, &expert, &[]);
            return;
        }
        holds.extend([&pairs, &pieces]);
        let pairs = Pairs::new(&limits, &expert, count as u32, rows, &pairs, &pieces);
        pairs.group(&mut ops, &holds);
        match up {
            Some(bf16s) => {
                let scales = if params.scales_input { expert.weights } else { Address::NONE };
                pairs.cut(&mut ops, expert.x, expert.used, expert.cols, scales, bf16s);
                pairs.multiply(&mut ops, &experts.up, 0, expert.cols, experts.up_rows as u32);
                pairs.activate(&mut ops, down);
            }
            None => {
                ops.push(Kernel::ExpertUp, grid_up, &expert, &[]);
                pairs.cut(&mut ops, expert.hidden, 1, expert.ffn, Address::NONE, down == Some(true));
            }
        }
        match down {
            Some(_) => {
                pairs.multiply(&mut ops, &experts.down, 1, expert.ffn, expert.cols);
                pairs.sum(&mut ops);
            }
            None => ops.push(Kernel::ExpertDown, grid_down, &expert, &[]),
        }
    }

    pub(super) fn add_beside_experts(
        &mut self,
        gate: Option<&CudaVector<D>>,
        x: &CudaBuffer<D>,
        shared: &CudaBuffer<D>,
        out: &mut CudaBuffer<D>,
    ) {
        self.check(shared, out.cols, "shared");
        out.check_sum();
        if let Some(gate) = gate {
            self.check(x, gate.length, "x");
        }
        let mut ops = self.ops();
        let params = SharedParams {
            batch: ops.batch,
            gate: address_of(gate.map(|gate| &gate.memory)),
            x: x.memory.address(),
            shared: shared.memory.address(),
            out: out.memory.address(),
            cols: out.cols as u32,
            x_cols: x.cols as u32,
        };
        let grid = Grid { blocks: [ops.bucket.rows, 1, 1], threads: THREADS, shared_bytes: SUM_BYTES };
        let mut holds = vec![&x.memory, &shared.memory, &out.memory];
        holds.extend(gate.map(|gate| &gate.memory));
        ops.push(Kernel::AddShared, grid, &params, &holds);
    }
}
