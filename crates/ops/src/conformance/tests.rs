//! Tests of the suite: it passes right backends, and fails each of a list of faults in the right check and for the
//! right reason. A suite that cannot fail proves nothing. The brief suite, which is part of the complete one, finds
//! nearly all faults.

mod faulty;

use std::panic::{AssertUnwindSafe, catch_unwind};

use faulty::{Fault, Faulty};

use super::*;
use crate::reference::ReferenceBackend;
use crate::{Operands, Rounding};

/// Maker of backends with a fault.
fn faulty(fault: Fault, declared: Option<Rounding>) -> impl Fn() -> AnyBackend {
    move || {
        AnyBackend::new(match declared {
            Some(rounding) => Faulty::declaring(fault, rounding),
            None => Faulty::new(fault),
        })
    }
}

#[test]
fn the_reference_conforms() {
    briefly(|| check_all(&|| AnyBackend::new(ReferenceBackend::new())));
    briefly(|| check_vocoder_ops(&|| AnyBackend::new(ReferenceBackend::new())));
}

#[test]
fn allowed_rounding_conforms() {
    briefly(|| check_all(&faulty(Fault::None, None)));
    briefly(|| check_vocoder_ops(&faulty(Fault::None, None)));
}

#[test]
fn running_ahead_conforms() {
    briefly(|| check_running_ahead(&faulty(Fault::RunsAhead, None)));
}

#[test]
fn operands_in_bf16_conform_where_that_is_declared() {
    let declared = Rounding { operands: Operands::Bf16, bytes_before_quantised: false };
    briefly(|| check_all(&faulty(Fault::OperandsInBf16, Some(declared))));
}

#[test]
fn undeclared_rounding_is_caught() {
    let none = Rounding { operands: Operands::F32, bytes_before_quantised: false };
    let bytes = Rounding { bytes_before_quantised: true, ..none };
    for declared in [none, bytes] {
        let make = faulty(Fault::OperandsInBf16, Some(declared));
        must_fail(Fault::OperandsInBf16, "matmul of", || check_matmul(&make));
        must_fail(Fault::OperandsInBf16, "gated_mlp", || check_gated_mlp(&make));
        must_fail(Fault::OperandsInBf16, "moe", || check_moe(&make));
        must_fail(Fault::OperandsInBf16, "logits of", || check_logits(&make));
        must_fail(Fault::OperandsInBf16, "rms_norm", || check_rms_norm(&make));
        must_fail(Fault::OperandsInBf16, "layer_norm", || check_layer_norm(&make));
        must_fail(Fault::OperandsInBf16, "rows read back", || check_transfers(&make));
        must_fail(Fault::OperandsInBf16, "rope_to_cache, queries", || check_rope_to_cache(&make));
        must_fail(Fault::OperandsInBf16, "attention", || check_attention(&make));
        must_fail(Fault::OperandsInBf16, "self_attention", || check_self_attention(&make));
        must_fail(Fault::OperandsInBf16, "matmul_activated", || check_matmul_activated(&make));
        must_fail(Fault::OperandsInBf16, "decoder of", || check_decoder(&make));
    }
    must_fail(Fault::None, "matmul of", || check_matmul(&faulty(Fault::None, Some(none))));
    // Errors larger than declared are found under the wider bounds too.
    let declared = Rounding { operands: Operands::Bf16, ..none };
    must_fail(Fault::LastGroupDropped, "matmul of", || {
        check_matmul(&faulty(Fault::LastGroupDropped, Some(declared)));
    });
    must_fail(Fault::ScaleIgnored, "attention", || {
        check_attention(&faulty(Fault::ScaleIgnored, Some(declared)));
    });
}

/// Runs a check that must fail with these words in its message: brief first, and complete if that does not fail.
fn must_fail(fault: Fault, words: &str, check: impl Fn()) {
    let said = |check: &dyn Fn()| {
        let panic = catch_unwind(AssertUnwindSafe(check)).err()?;
        Some(panic.downcast_ref::<String>().cloned().unwrap_or_default())
    };
    if said(&|| briefly(&check)).is_some_and(|message| message.contains(words)) {
        return;
    }
    let Some(message) = said(&check) else { panic!("{fault:?} was not caught") };
    assert!(message.contains(words), "{fault:?} was caught for another reason: {message}");
}

macro_rules! caught {
    ($($fault:ident by $check:ident: $words:literal;)*) => {
        $(must_fail(Fault::$fault, $words, || $check(&faulty(Fault::$fault, None)));)*
    };
}

#[test]
fn faulty_matrices_are_caught() {
    caught! {
        SixBitActivations by check_matmul: "matmul of";
        EightBitsBeforeFloats by check_matmul: "matmul of F32";
        ScaleTwoPercentOff by check_matmul: "squared errors";
        LastGroupDropped by check_matmul: "matmul of";
        LastOutputsSkipped by check_matmul: "matmul of";
        LastOutputNan by check_matmul: "is NaN, not";
        LastOutputNan by check_logits: "is NaN, not";
        LastOutputNan by check_gated_mlp: "is NaN, not";
        MinsIgnored by check_matmul: "matmul of Q4_K";
        BiasIgnored by check_matmul: "with bias";
        RowBehindBatchWritten by check_matmul: "rows behind the batch";
        PartsSwapped by check_mixed_matrix: "matmul of F32 + F16";
        SumOrderOfBatch by check_matmul_invariance: "in one batch";
        ScaleOfBatch by check_matmul_invariance: "in one batch";
        NextTokenEmbedded by check_embed: "embed of";
        EmbedScaleIgnored by check_embed: "embed of";
        FirstRowsLogits by check_logits: "logits of";
        SixBitActivations by check_logits: "logits of";
        GeluSwapped by check_gated_mlp: "gated_mlp, Gelu";
        GateUpSwapped by check_gated_mlp: "gated_mlp";
        ActivationOfUp by check_gated_mlp: "gated_mlp";
        LastGroupDropped by check_gated_mlp: "gated_mlp";
        SixBitActivations by check_gated_mlp: "gated_mlp";
        ScaleOfBatch by check_gated_mlp: "in one batch";
    }
}

#[test]
fn faulty_adapters_are_caught() {
    caught! {
        AdapterOfFirstRow by check_low_rank: "add_low_rank";
        AdapterSpread by check_low_rank: "a row without an adapter";
        AdapterColumnsFromFirst by check_low_rank: "add_low_rank";
        AdapterScaleIgnored by check_low_rank: "add_low_rank";
        AdapterPartDropped by check_low_rank: "add_low_rank";
        AdapterReplaces by check_low_rank: "add_low_rank";
        AdapterFactorIgnored by check_low_rank: "add_low_rank";
        AdapterAddendIgnored by check_low_rank: "add_low_rank";
        AdapterInputIgnored by check_low_rank: "add_low_rank";
        AdapterOfFirstLogits by check_adapted_logits: "adapted logits";
        SumOrderOfBatch by check_low_rank: "in one batch";
        RowBehindBatchWritten by check_low_rank: "rows behind the batch";
        SizeHalved by check_low_rank: "low_rank_bytes";
        ShortBytesTaken by check_low_rank: "took a bad pair";
        GateUpSwapped by check_gate: "gate, ";
        ActivationOfUp by check_gate: "gate, ";
        GeluSwapped by check_gate: "gate, Gelu";
    }
}

#[test]
fn faulty_draws_are_caught() {
    caught! {
        TemperatureIgnored by check_sample: "sample of";
        TopKIgnored by check_sample: "sample of";
        TopPIgnored by check_sample: "sample of";
        MinPIgnored by check_sample: "sample of";
        TopNSigmaIgnored by check_sample: "sample of";
        TemperatureRangeIgnored by check_sample: "sample of";
        TemperatureExponentIgnored by check_sample: "sample of";
        TypicalPIgnored by check_sample: "sample of";
        XtcIgnored by check_sample: "sample of";
        ProbabilityMinIgnored by check_sample: "sample of";
        ProbabilityOfAll by check_sample: "its probability";
        UniformOfFirstRow by check_sample: "sample of";
        AdjustmentsReversed by check_sample: "sample of";
        RepetitionIgnored by check_sample: "sample of";
        SeenOfFirstRow by check_sample: "sample of";
        RuledOutAdjusted by check_sample: "sample of";
        LogprobsAdjusted by check_sample: "log probabilities";
        NanDrawn by check_sample: "sample of";
        MaskIgnored by check_sample: "sample of";
        LogitsNotCapped by check_sample: "sample of";
        HeadBiasIgnored by check_sample: "sample of";
        MaskOfFirstRow by check_sample: "sample of";
        LastOfEquals by check_sample: "sample of";
        AxesIgnored by check_rope_axes: "rope by three positions";
        AxesNextTurned by check_rope_axes: "rope by three positions";
        SecondTableIgnored by check_rope_tables: "rope of two tables";
        TableMagnitudeIgnored by check_rope_tables: "rope of two tables";
        LaterDrawsGiven by check_running_ahead: "two steps under way";
        KeysByPosition by check_rope_to_cache_axes: "attention over keys turned by three positions";
        AxesIgnored by check_rope_to_cache_axes: "rope_to_cache by three positions";
        NextRowSampled by check_row_sources: "rows of every source";
        WrittenRowEmbedded by check_row_sources: "rows of every source";
    }
}

#[test]
fn faulty_experts_are_caught() {
    caught! {
        GeluSwapped by check_moe: "activation: Gelu";
        GateUpSwapped by check_moe: "gated: true";
        ActivationSkipped by check_moe: "gated: false";
        LastGroupDropped by check_moe: "moe";
        SixBitActivations by check_moe: "moe";
        NextExpert by check_moe: "clear choices";
        LastExpertDropped by check_moe: "clear choices";
        ChosenOfFirstRow by check_moe: "clear choices";
        WeightsNotNormed by check_moe: "normalized: true";
        WeightsAlwaysNormed by check_moe: "normalized: false";
        ScoringSwapped by check_moe: "clear choices";
        RoutedScaleIgnored by check_moe: "scale: 2.5";
        FullExpertSkipped by check_moe: "70 rows";
        RowBehindBatchWritten by check_moe: "rows behind the batch";
        LastOfEquals by check_moe_choice: "all experts equal";
        NanIgnored by check_moe_choice: "numbers made of a score that is none";
        NanZeroed by check_moe_choice: "numbers made of a row with NaN";
        NanSpread by check_moe_choice: "beside rows that are not numbers";
        SumOrderOfBatch by check_moe_invariance: "in one batch";
        ScaleOfBatch by check_moe_invariance: "in one batch";
        FullExpertSkipped by check_moe_invariance: "in one batch";
        CorrectionIgnored by check_moe_routing: "moe, ";
        CorrectionWeighed by check_moe_routing: "moe, ";
        ExpertGroupsIgnored by check_moe_routing: "groups: Some";
        BestOfGroupAlone by check_moe_routing: "best: 2";
        RouterBiasIgnored by check_moe_routing: "ClampedSwish";
        ExpertBiasIgnored by check_moe_routing: "ClampedSwish";
        ClampIgnored by check_moe_routing: "ClampedSwish";
        InputNotScaled by check_moe_routing: "scales_input: true";
        ExpertScaleIgnored by check_moe_routing: "moe, ";
        RouterReadsInput by check_moe_routing: "moe, ";
        NearnessIgnored by check_moe_routing: "Near { reach: 0.5 }";
        NearByEach by check_moe_routing: "Near { reach: 0.5 }";
        SharedGateIgnored by check_add_shared: "gate true";
    }
}

#[test]
fn faulty_ops_on_rows_are_caught() {
    caught! {
        RowsNotScaled by check_row_op: "rows times";
        MultipliedFromFirst by check_row_op: "columns from 5";
        WeightsOfStreamsTurned by check_streams: "streams mixed";
        WeightsNotPlusOne by check_streams: "one stream mixed";
        FirstStreamSpread by check_streams: "spread";
        SizeKept by check_row_op: "the size of others";
        OutliersNotCut by check_row_op: "outliers";
        MeanForgotten by check_row_op: "outliers";
        FactorIgnored by check_row_op: "added";
        WeightsIgnored by check_row_op: "weighed";
        TanhSkipped by check_row_op: "tanh";
        NegativesStraight by check_row_op: "xielu";
        ColumnsFromFirst by check_row_op: "taken";
        ColumnsFromFirst by check_streams: "put";
        RowBehindBatchWritten by check_row_op: "rows behind the batch";
        PartsNormedTogether by check_rms_norm: "in 3 parts";
    }
}

#[test]
fn faulty_norms_are_caught() {
    caught! {
        EpsIgnored by check_rms_norm: "rms_norm";
        NormOverPaddedWidth by check_rms_norm: "rms_norm [16, 33]";
        NormWeightIgnored by check_rms_norm: "rms_norm";
        RowBehindBatchWritten by check_rms_norm: "rows behind the batch";
        EpsIgnored by check_add_rms_norm: "add_rms_norm";
        ResidualKept by check_add_rms_norm: "residual";
    }
}

#[test]
fn faulty_layer_norms_are_caught() {
    caught! {
        EpsIgnored by check_layer_norm: "layer_norm";
        MeanKept by check_layer_norm: "layer_norm";
        LayerBiasIgnored by check_layer_norm: "with bias";
        NormWeightIgnored by check_layer_norm: "layer_norm";
        NormOverPaddedWidth by check_layer_norm: "layer_norm [16, 33]";
        VarianceUnbiased by check_layer_norm: "layer_norm";
        VarianceByDifference by check_layer_norm: "layer_norm";
        RowBehindBatchWritten by check_layer_norm: "rows behind the batch";
        MeanKept by check_add_layer_norm: "layer_norm";
        ResidualKept by check_add_layer_norm: "residual";
        ColumnsFromFirst by check_layer_norm_columns: "layer_norm_columns 64..128";
        ColumnsTogether by check_layer_norm_columns: "by 32";
        OtherColumnsNormed by check_layer_norm_columns: "layer_norm_columns 64..128";
        RowBehindBatchWritten by check_layer_norm_columns: "rows behind the batch";
    }
}

#[test]
fn faulty_unfolding_is_caught() {
    caught! {
        UnfoldedBackwards by check_unfold: "unfold of";
        NeighboursSeen by check_unfold: "unfold of";
        RowBehindBatchWritten by check_unfold: "rows behind the batch";
    }
}

#[test]
fn faulty_convolutions_are_caught() {
    caught! {
        TapsReversed by check_convolutions: "conv of";
        BiasIgnored by check_convolutions: "added true";
        AddendsIgnored by check_convolutions: "added true";
        ActivationSkipped by check_convolutions: "conv of";
        PaddingSwapped by check_convolutions: "conv of";
        NeighboursSeen by check_convolutions: "conv of";
        WeightsIgnored by check_instance_affine: "instance_affine of";
        NeighboursSeen by check_instance_affine: "instance_affine of";
        LastOutputsSkipped by check_mirror: "mirror of";
        DecayIgnored by check_lstm: "lstm of";
        NeighboursSeen by check_lstm: "lstm of";
        KeyTermDropped by check_relative_attention: "relative_attention of";
        AddendsIgnored by check_relative_attention: "relative_attention of";
        NeighboursSeen by check_relative_attention: "relative_attention of";
        ActivationSkipped by check_activate: "activate";
        RowBehindBatchWritten by check_activate: "rows behind the batch";
    }
}

#[test]
fn faulty_embeddings_are_caught() {
    caught! {
        EmbeddingReplaces by check_add_embedding: "positions";
        OffsetIgnored by check_add_embedding: "positions from 2 on";
        TypesIgnored by check_add_embedding: "types";
        PositionFromRow by check_add_embedding: "positions";
        RowBehindBatchWritten by check_add_embedding: "rows behind the batch";
    }
}

#[test]
fn faulty_biases_are_caught() {
    caught! {
        BiasIgnored by check_add_bias: "add_bias";
        RowBehindBatchWritten by check_add_bias: "rows behind the batch";
    }
}

#[test]
fn faulty_activated_products_are_caught() {
    caught! {
        ActivationSkipped by check_matmul_activated: "matmul_activated";
        ActivationBeforeBias by check_matmul_activated: "with bias";
        BiasIgnored by check_matmul_activated: "with bias";
        GeluSwapped by check_matmul_activated: "Gelu";
        SquareForgotten by check_matmul_activated: "ReluSquared";
        QuickAsSilu by check_matmul_activated: "QuickGelu";
        SixBitActivations by check_matmul_activated: "matmul_activated";
        LastOutputsSkipped by check_matmul_activated: "matmul_activated";
        SumOrderOfBatch by check_matmul_activated: "in one batch";
        RowBehindBatchWritten by check_matmul_activated: "rows behind the batch";
    }
}

#[test]
fn faulty_rope_is_caught() {
    caught! {
        KindSwapped by check_rope: "rope, ";
        WholeHeadTurned by check_rope: "rope, ";
        MagnitudeIgnored by check_rope: "magnitude 1.25";
        QueriesNotNormed by check_rope: "normed [true, true]";
        KeysNotNormed by check_rope: "normed [true, true]";
        NormAfterRope by check_rope: "normed [true, true]";
        PositionFromRow by check_rope: "rope, ";
        KeysNotTurned by check_rope: "rope, ";
        ValuesTurned by check_rope: "values";
        RowBehindBatchWritten by check_rope: "rows behind the batch";
    }
}

#[test]
fn faulty_attention_inside_sequences_is_caught() {
    caught! {
        ScaleIgnored by check_self_attention: "self_attention";
        ReachIgnored by check_self_attention: "reach: Some";
        PaddingSeen by check_self_attention: "padding: ";
        ReachOneMore by check_self_attention: "reach: Some";
        ReachOneLess by check_self_attention: "reach: Some";
        AlwaysCausal by check_self_attention: "self_attention";
        NeighboursSeen by check_self_attention: "self_attention";
        LastKeyMissed by check_self_attention: "self_attention";
        HeadsInterleaved by check_self_attention: "self_attention";
        KeysHalved by check_self_attention: "self_attention";
        PositionBiasIgnored by check_self_attention: "a";
        PositionBiasMirrored by check_self_attention: "to ";
        PositionBiasOfFirstHead by check_self_attention: "a";
        FarBiasIgnored by check_self_attention: "bias by distance";
        KeyTermDropped by check_self_attention: "keys true";
        QueryTermDropped by check_self_attention: "queries true";
        TermsNotScaled by check_self_attention: "disentangled";
        RowBehindBatchWritten by check_self_attention: "rows behind the batch";
        RowsOfChunkMatter by check_self_attention_invariance: "in one batch";
        NeighboursSeen by check_self_attention_invariance: "in one batch";
        NeighboursSeen by check_self_attention_parts: "queries 0..48 of";
        LastKeyMissed by check_self_attention_parts: "queries 0..48 of";
    }
}

#[test]
fn faulty_rope_to_cache_is_caught() {
    caught! {
        KindSwapped by check_rope_to_cache: "rope_to_cache, queries";
        WholeHeadTurned by check_rope_to_cache: "rope_to_cache, queries";
        MagnitudeIgnored by check_rope_to_cache: "rope_to_cache, queries";
        QueriesNotNormed by check_rope_to_cache: "rope_to_cache, queries";
        HeadsNormedApart by check_rope_to_cache: "rope_to_cache, queries";
        NormAfterRope by check_rope_to_cache: "rope_to_cache, queries";
        NormBeforeRope by check_rope_to_cache: "norm_after_rope: true";
        QueryScaleIgnored by check_rope_to_cache: "query_scale: Some";
        ValuesNotNormed by check_rope_to_cache: "values_normed: true";
        LoneQueriesNotTurned by check_rope_to_cache: "alone: true";
        PositionFromRow by check_rope_to_cache: "rope_to_cache, queries";
        KeysNotNormed by check_rope_to_cache: "attention over what rope_to_cache stored";
        KeysNotTurned by check_rope_to_cache: "attention over what rope_to_cache stored";
        ValuesTurned by check_rope_to_cache: "what rope_to_cache stored";
    }
}

#[test]
fn faulty_attention_is_caught() {
    caught! {
        ScaleIgnored by check_attention: "attention";
        WindowIgnored by check_attention: "window: Some";
        WindowOneMore by check_attention: "window: Some";
        WindowOneLess by check_attention: "window: Some";
        ChunksSlide by check_attention: "chunked: true";
        MemorySeenCausally by check_memory_attention: "memory: true";
        MemorySeenFromItsBeginning by check_memory_attention: "memory: true";
        PicturesSeenCausally by check_mutual_attention: "mutual: Some";
        PicturesSeenToTheEnd by check_mutual_attention: "mutual: Some";
        SoftcapIgnored by check_attention: "softcap: Some";
        SinksIgnored by check_attention: "sinks: Some";
        SlopesIgnored by check_attention: "slopes: Some";
        SlopeOfFirstHead by check_attention: "slopes: Some";
        FutureSeen by check_attention: "attention";
        HeadsInterleaved by check_attention: "attention";
        LayerIgnored by check_attention: "heads and cache differ in shape";
        TablesIgnored by check_attention: "attention";
        TablesFromFirstBlock by check_attention: "grouped: true";
        GroupsIgnored by check_attention: "grouped: true";
        LastKeyMissed by check_attention: "attention";
        RowsOfChunkMatter by check_attention_invariance: "token by token";
        RowsOfChunkMatter by check_attention_long_contexts: "one by one";
    }
}

#[test]
fn faulty_latents_are_caught() {
    caught! {
        FirstHeadsMatrix by check_heads_matmul: "heads_matmul of";
        RestZeroed by check_heads_matmul: "what stays";
        RowBehindBatchWritten by check_heads_matmul: "rows behind the batch";
        NormWeightIgnored by check_latent_attention: "latent attention";
        QueriesNotTurned by check_latent_attention: "latent attention";
        ScaleIgnored by check_latent_attention: "latent attention";
        TablesIgnored by check_latent_attention: "latent attention";
        RowsOfChunkMatter by check_latent_attention: "in one batch";
    }
}

#[test]
fn faulty_states_are_caught() {
    caught! {
        StatesByPlace by check_states: "convolve of";
        TapsReversed by check_states: "convolve of";
        SiluAlways by check_states: "convolve of StateShape { rule: Convolution";
        BiasIgnored by check_states: "convolve of";
        DecayIgnored by check_states: "recur of";
        StepBiasIgnored by check_states: "recur of";
        StepLimitsIgnored by check_states: "limits true";
        SkipIgnored by check_states: "limits true";
        RowsOfChunkMatter by check_states: "one by one";
        RowBehindBatchWritten by check_gate_output: "rows behind the batch";
        GateKindSwapped by check_gate_output: "gate_output of";
        GateNormSwapped by check_gate_output: "normed first: Some";
        NormWeightIgnored by check_gate_output: "normed first: Some";
        ColumnsFromFirst by check_gate_output: "gate_output of";
        StatesForgotten by check_sizes: "states take";
    }
}

#[test]
fn faulty_steps_are_caught() {
    caught! {
        SumOrderOfBatch by check_decoder: "in one batch";
        RowsOfChunkMatter by check_decoder: "in one batch";
        PositionFromRow by check_decoder: "in one batch";
        BiasIgnored by check_decoder: "decoder of F32";
        LayerIgnored by check_decoder: "decoder of";
        FirstRowRead by check_transfers: "some rows read back";
        DirtyBuffers by check_transfers: "a new buffer";
        ShortBytesTaken by check_pack: "pack took";
        UnsupportedTaken by check_pack: "pack took";
        UnnamedTensor by check_pack: "does not name the tensor";
        SizeHalved by check_sizes: "matrix_bytes";
        ExpertsUncounted by check_sizes: "experts_bytes";
        ResidualInHalves by check_sizes: "buffer_bytes of Residual";
        LayersOfFirst by check_sizes: "layers that differ";
        LatentForgotten by check_sizes: "a latent takes 0 bytes";
        EndOnce by check_steps: "end before any step";
    }
}
