// Models with split layers or sequences, on many meshes, train as on one rank.
#include <gtest/gtest.h>

#include "tests/unit/train/token_sequences.h"
#include "trireme/train/run/verify.h"
#include "trireme/train/step/trainer.h"

namespace trireme::train {
namespace {

using comm::Context;
using comm::run_ranks_as_threads;

class TensorMeshes : public testing::TestWithParam<FormMesh> {};

TEST_P(TensorMeshes, TrainTheSameAsOneRank) {
  const data::DataSource data = token_sequences();
  run_ranks_as_threads(GetParam().ranks, [&](Context& context) {
    const Comparison comparison = verify(config_of_form(GetParam()), context, data, 2);
    if (!context.is_main()) return;
    EXPECT_TRUE(comparison.equal()) << (comparison.first() ? comparison.first()->describe() : "unverified");
    EXPECT_EQ(comparison.num_skipped(), 0);
  });
}

INSTANTIATE_TEST_SUITE_P(
    All, TensorMeshes,
    testing::Values(
        FormMesh{"Tp2", 2, {.tensor = 2}}, FormMesh{"Tp3Sequence", 3, {.tensor = 3, .sequence = true}},
        FormMesh{"Tp4Accumulation2", 4, {.tensor = 4}, 2}, FormMesh{"Tp2Bf16", 2, {.tensor = 2}, 1, "bf16"},
        FormMesh{"Tp2SequenceFp16", 2, {.tensor = 2, .sequence = true}, 1, "fp16"},
        FormMesh{"Dp2Tp2Sequence", 4, {.tensor = 2, .sequence = true}, 2},
        FormMesh{"Dp2Tp2Zero1", 4, {.tensor = 2, .zero = 1}},
        FormMesh{"Dp2Tp2Zero2", 4, {.tensor = 2, .zero = 2}, 2}, FormMesh{"Dp2Zero3", 2, {.zero = 3}},
        FormMesh{"Dp2Chunks2", 2, {.chunks = 2}, 2}, FormMesh{"Dp2Tp2Zero3", 4, {.tensor = 2, .zero = 3}},
        FormMesh{.name = "Tp2Lamb", .ranks = 2, .parallel = {.tensor = 2}, .optimizer = "lamb"},
        FormMesh{.name = "Tp3SequenceLars",
                 .ranks = 3,
                 .parallel = {.tensor = 3, .sequence = true},
                 .optimizer = "lars"},
        FormMesh{.name = "Tp2Muon", .ranks = 2, .parallel = {.tensor = 2}, .optimizer = "muon"},
        FormMesh{.name = "Tp4SequenceMuon",
                 .ranks = 4,
                 .parallel = {.tensor = 4, .sequence = true},
                 .accumulation = 2,
                 .optimizer = "muon"},
        FormMesh{.name = "Dp2Tp2Lamb", .ranks = 4, .parallel = {.tensor = 2}, .optimizer = "lamb"},
        FormMesh{.name = "Tp3Muon", .ranks = 3, .parallel = {.tensor = 3}, .optimizer = "muon"},
        FormMesh{.name = "Pp2Tp2Lamb",
                 .ranks = 4,
                 .parallel = {.pipeline = 2, .tensor = 2, .partition = "parameters"},
                 .optimizer = "lamb"},
        FormMesh{.name = "Pp2Tp2Muon",
                 .ranks = 4,
                 .parallel = {.pipeline = 2, .tensor = 2, .partition = "parameters"},
                 .optimizer = "muon"},
        FormMesh{
            .name = "Cp2Tp2Lars", .ranks = 4, .parallel = {.tensor = 2, .context = 2}, .optimizer = "lars"},
        FormMesh{.name = "Tp2Recomputed", .ranks = 2, .parallel = {.tensor = 2}, .recomputed = {"*"}},
        FormMesh{.name = "Tp2SequenceBudget",
                 .ranks = 2,
                 .parallel = {.tensor = 2, .sequence = true},
                 .budget = "120KiB"},
        FormMesh{.name = "Pp2Tp2Budget",
                 .ranks = 4,
                 .parallel = {.pipeline = 2, .tensor = 2, .microbatches = 2, .partition = "parameters"},
                 .budget = "60KiB"},
        FormMesh{"Pp2Tp2", 4, {.pipeline = 2, .tensor = 2, .microbatches = 4}},
        FormMesh{"Pp2Tp2Gpipe", 4, {.pipeline = 2, .tensor = 2, .schedule = "gpipe", .microbatches = 4}},
        FormMesh{"Pp2Tp2ZeroBubble",
                 4,
                 {.pipeline = 2, .tensor = 2, .sequence = true, .schedule = "zb-h1", .microbatches = 4}},
        FormMesh{"Pp2Tp2ZbV", 4, {.pipeline = 2, .tensor = 2, .schedule = "zb-v", .microbatches = 4}},
        FormMesh{"Pp2Tp2InterleavedRecompute",
                 4,
                 {.pipeline = 2,
                  .tensor = 2,
                  .schedule = "interleaved-1f1b",
                  .chunks = 2,
                  .microbatches = 4,
                  .recompute = true}},
        FormMesh{"Dp2Pp2Tp2", 8, {.pipeline = 2, .tensor = 2, .microbatches = 2}},
        FormMesh{.name = "Dp2Pp2Tp2Zero3Recomputed",
                 .ranks = 8,
                 .parallel = {.pipeline = 2, .tensor = 2, .microbatches = 2, .zero = 3},
                 .recomputed = {"block *"}},
        FormMesh{"Cp2", 2, {.context = 2}}, FormMesh{"Cp3", 3, {.context = 3}},
        FormMesh{"Dp2Cp2Accumulation2", 4, {.context = 2}, 2},
        FormMesh{"Cp2Tp2", 4, {.tensor = 2, .context = 2}},
        FormMesh{"Cp2Tp2Sequence", 4, {.tensor = 2, .sequence = true, .context = 2}},
        FormMesh{"Cp2Bf16", 2, {.context = 2}, 1, "bf16"}, FormMesh{"Cp2Fp16", 2, {.context = 2}, 1, "fp16"},
        FormMesh{"Cp2Zero1", 2, {.context = 2, .zero = 1}},
        FormMesh{"Dp2Cp2Zero2", 4, {.context = 2, .zero = 2}, 2},
        FormMesh{"Dp2Cp2Zero3", 4, {.context = 2, .zero = 3}},
        FormMesh{.name = "Cp2Recomputed", .ranks = 2, .parallel = {.context = 2}, .recomputed = {"*"}},
        FormMesh{.name = "Cp2Budget", .ranks = 2, .parallel = {.context = 2}, .budget = "96KiB"},
        FormMesh{"Pp2Cp2", 4, {.pipeline = 2, .context = 2, .microbatches = 4}},
        FormMesh{"Pp2Cp2ZbV", 4, {.pipeline = 2, .context = 2, .schedule = "zb-v", .microbatches = 4}},
        FormMesh{"Pp2Cp2InterleavedRecompute",
                 4,
                 {.pipeline = 2,
                  .context = 2,
                  .schedule = "interleaved-1f1b",
                  .chunks = 2,
                  .microbatches = 4,
                  .recompute = true}},
        FormMesh{"Pp2Cp2Tp2", 8, {.pipeline = 2, .tensor = 2, .context = 2, .microbatches = 2}},
        FormMesh{"Dp2Cp2Tp2Zero1", 8, {.tensor = 2, .context = 2, .zero = 1}},
        FormMesh{"Dp2Pp2Cp2Zero2", 8, {.pipeline = 2, .context = 2, .microbatches = 2, .zero = 2}},
        FormMesh{
            "Dp2Pp2Tp2Zero2Fp16", 8, {.pipeline = 2, .tensor = 2, .microbatches = 2, .zero = 2}, 2, "fp16"}),
    [](const auto& instance) { return std::string(instance.param.name); });

}  // namespace
}  // namespace trireme::train
