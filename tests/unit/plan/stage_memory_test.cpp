#include "trireme/plan/stage_memory.h"

#include <gtest/gtest.h>

namespace trireme::plan {
namespace {

/// Saves its input and 100 bytes more. Its forward needs at most 130 bytes, and its backward 40 more.
LayerMemory layer() {
  return {.kept = {.inner_bytes = 100, .output_bytes = 10, .saves_input = true},
          .forward_bytes = 130,
          .backward_bytes = 40,
          .gradient_bytes = 1000,
          .largest_gradient_bytes = 700,
          .input_backward_bytes = 60,
          .for_weights_bytes = 50};
}

TEST(StageMemory, SumsKeptActivationsAndLargestLayer) {
  const std::vector<LayerMemory> layers = {layer(), layer()};
  const StageMemory stage = memory_of_stage(layers, {});
  // The tensor between the two counts once, and the last output not at all.
  EXPECT_EQ(stage.kept_bytes, 100 + 10 + 100);
  // The second layer's forward, plus the saved tensors of the first.
  EXPECT_EQ(stage.forward_bytes, 100 + 10 + 130);
  EXPECT_EQ(stage.backward_bytes, 210 + 40);  // the last layer's, if everything is still saved
  EXPECT_EQ(stage.gradient_bytes, 2000);
}

TEST(StageMemory, GrowsByGradientsThatStay) {
  const std::vector<LayerMemory> layers = {layer(), layer()};
  // The gradients of the second layer, then those of both with the saved tensors of the first.
  EXPECT_EQ(memory_of_stage(layers, {}).first_backward_bytes, 110 + 40 + 2000);
  EXPECT_EQ(memory_of_stage(layers, {}).first_gradient_bytes, 2000);
}

TEST(StageMemory, CountsGradientsBeforeTheirSum) {
  const std::vector<LayerMemory> layers = {layer()};
  const StageForm form{.gradients = GradientsOfStage::kCopied};
  EXPECT_EQ(memory_of_stage(layers, form).backward_bytes, 100 + 700);
}

TEST(StageMemory, HoldsMessagesUntilItsBackward) {
  const std::vector<LayerMemory> layers = {layer(), layer()};
  const StageForm form{.edges = {.input_bytes = 7, .output_bytes = 10}};
  EXPECT_EQ(memory_of_stage(layers, form).kept_bytes, 7 + 210 + 10);
  // Its own backward needs the output, which counts once.
  std::vector<LayerMemory> saving = layers;
  saving.back().kept.saves_output = true;
  EXPECT_EQ(memory_of_stage(saving, form).kept_bytes, 7 + 210 + 10);
}

TEST(StageMemory, RecomputedLayersKeepInputsAndOneLayer) {
  const std::vector<LayerMemory> layers = {layer(), layer(), layer()};
  const StageForm form{.recomputed = {.layers = {true, true, true}}};
  const StageMemory stage = memory_of_stage(layers, form);
  EXPECT_EQ(stage.kept_bytes, 10 + 10);
  EXPECT_EQ(stage.backward_bytes, 20 + 100 + 40);
  EXPECT_EQ(stage.forward_bytes, 10 + 10 + (130 - 100)) << "its graph is made and not kept";
}

TEST(StageMemory, RecomputedStageKeepsItsInput) {
  const std::vector<LayerMemory> layers = {layer(), layer()};
  const StageForm form{.recomputed = {.layers = {}, .stage = true},
                       .edges = {.input_bytes = 7, .output_bytes = 10}};
  const StageMemory stage = memory_of_stage(layers, form);
  EXPECT_EQ(stage.kept_bytes, 7);
  EXPECT_EQ(stage.backward_bytes, 7 + 210 + 10 + 40) << "all of it is there again in its backward";
}

TEST(StageMemory, SplitBackwardKeepsNeedsOfSecondPart) {
  const std::vector<LayerMemory> layers = {layer(), layer()};
  const StageMemory stage = memory_of_stage(layers, {});
  EXPECT_EQ(stage.for_weights_bytes, 50 + 50);
  // The second layer's, with everything saved. The first layer's with the rest of the second: 110 + 50 + 60.
  EXPECT_EQ(stage.input_backward_bytes, 210 + 60);
  std::vector<LayerMemory> heavy = layers;
  heavy.back().for_weights_bytes = 500;
  EXPECT_EQ(memory_of_stage(heavy, {}).input_backward_bytes, 110 + 500 + 60);
}

}  // namespace
}  // namespace trireme::plan
