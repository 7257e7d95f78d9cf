// Runs that start with the weights of a file. Each rank reads the parts that it computes with.
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <functional>
#include <nlohmann/json.hpp>

#include "tests/unit/train/small_runs.h"
#include "trireme/base/error.h"
#include "trireme/checkpoint/safetensors.h"
#include "trireme/checkpoint/weights_file.h"
#include "trireme/model/deferred.h"
#include "trireme/model/gpt.h"
#include "trireme/train/step/internal/initial_weights.h"
#include "trireme/train/step/model_state.h"

namespace trireme::train {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

class RunsFromWeights : public SmallRuns {
 protected:
  /// A run that changes no weights, so that its final weights are the initial ones.
  RunConfig still(const std::string& name) const {
    RunConfig still = config(name);
    still.data = {.name = "text", .path = sentences(), .block = 8};
    still.model = {.name = "gpt", .layers = 2, .heads = 3, .width = 12};
    still.train = {.max_steps = 2, .global_batch = 8, .clip_norm = 0};
    still.optimizer = {.name = "sgd", .lr = 1e-30, .momentum = 0};
    still.checkpoint.every_steps = 0;
    return still;
  }
  std::string sentences() const {
    const auto path = folder_.path() / "sentences.txt";
    if (!std::filesystem::exists(path)) {
      std::string text;
      for (int i = 0; i < 200; ++i) text += "a galley has three rows of oars; ";
      write_file_atomic(path, text);
    }
    return path.string();
  }
  /// Weights of a run with another seed than the tested runs.
  std::filesystem::path weights_of_another_run() const {
    RunConfig another = still("another");
    another.run.seed = 77;
    run(1, another);
    return folder_.path() / "another/model.safetensors";
  }
  std::string weights_at_the_end(int ranks, RunConfig config, const std::filesystem::path& from) const {
    config.model.weights = from.string();
    return run(ranks, config).weights_xxh3;
  }
};

struct Mesh {
  const char* name;
  int ranks;
  void (*change)(ParallelOptions&);
};
void PrintTo(const Mesh& mesh, std::ostream* out) { *out << mesh.name; }

class WeightsOnMesh : public RunsFromWeights, public testing::WithParamInterface<Mesh> {};

TEST_P(WeightsOnMesh, MatchFileOnEveryRank) {
  const auto path = weights_of_another_run();
  const std::string expected = checkpoint::xxh3_of(checkpoint::load_safetensors(path).tensors);
  RunConfig meshed = still("meshed");
  GetParam().change(meshed.parallel);
  EXPECT_EQ(weights_at_the_end(GetParam().ranks, meshed, path), expected);
}

INSTANTIATE_TEST_SUITE_P(Every, WeightsOnMesh,
                         testing::Values(Mesh{"Alone", 1, [](ParallelOptions&) {}},
                                         Mesh{"Dp2", 2, [](ParallelOptions&) {}},
                                         Mesh{"Pp2", 2, [](ParallelOptions& p) { p.pipeline = 2; }},
                                         Mesh{"Tp2", 2, [](ParallelOptions& p) { p.tensor = 2; }},
                                         Mesh{"Zero3", 2, [](ParallelOptions& p) { p.zero = 3; }},
                                         Mesh{"Pp2Tp2", 4,
                                              [](ParallelOptions& p) {
                                                p.pipeline = 2;
                                                p.tensor = 2;
                                              }}),
                         [](const auto& mesh) { return mesh.param.name; });

TEST_F(RunsFromWeights, OfAnotherTypeAreConverted) {
  checkpoint::TensorMap tensors = checkpoint::load_safetensors(weights_of_another_run()).tensors;
  const auto half = folder_.path() / "half.safetensors";
  for (auto& [name, tensor] : tensors) tensor = tensor.to(at::kBFloat16);
  checkpoint::save_safetensors(half, tensors);
  for (auto& [name, tensor] : tensors) tensor = tensor.to(at::kFloat);
  RunConfig meshed = still("meshed");
  meshed.parallel.tensor = 2;
  EXPECT_EQ(weights_at_the_end(2, meshed, half), checkpoint::xxh3_of(tensors));
}

TEST_F(RunsFromWeights, MayUseSeveralIndexedFiles) {
  const checkpoint::TensorMap tensors = checkpoint::load_safetensors(weights_of_another_run()).tensors;
  nlohmann::json map;
  std::array<checkpoint::TensorMap, 2> halves;
  for (const auto& [name, tensor] : tensors) {
    const std::size_t half = map.size() % 2;
    halves[half].emplace(name, tensor);
    map[name] = text("part", half, ".safetensors");
  }
  for (std::size_t half = 0; half < 2; ++half)
    checkpoint::save_safetensors(folder_.path() / text("part", half, ".safetensors"), halves[half]);
  const auto index = folder_.path() / "parts.safetensors.index.json";
  write_file_atomic(index, nlohmann::json{{"weight_map", map}}.dump());
  RunConfig meshed = still("meshed");
  meshed.parallel.pipeline = 2;
  EXPECT_EQ(weights_at_the_end(2, meshed, index), checkpoint::xxh3_of(tensors));
  EXPECT_EQ(checkpoint::xxh3_of(checkpoint::load_weights_file(index).tensors), checkpoint::xxh3_of(tensors));
  write_file_atomic(index, R"({"weight_map": {"wte.weight": "../part0.safetensors"}})");
  EXPECT_THAT([&] { weights_at_the_end(2, meshed, index); },
              ThrowsMessage<DataError>(HasSubstr("expected a file in its own folder")));
}

TEST_F(RunsFromWeights, RejectAnotherModelOnAllRanks) {
  const auto path = weights_of_another_run();
  RunConfig wider = still("wider");
  wider.model.width = 15;
  wider.parallel.pipeline = 2;
  EXPECT_THAT([&] { weights_at_the_end(2, wider, path); },
              ThrowsMessage<DataError>(testing::AllOf(HasSubstr("of another shape"), HasSubstr("[12]"))));
}

class FirstWeightsOfAFile : public testing::Test {
 protected:
  using Use = std::function<void(const InitialWeights*)>;
  void open(const checkpoint::TensorMap& tensors, const Use& use, const model::Model& whole) const {
    checkpoint::save_safetensors(path_, tensors);
    comm::run_ranks_as_threads(
        1, [&](comm::Context& context) { use(InitialWeights::open(path_.string(), context, whole).get()); });
  }
  static std::shared_ptr<model::Model> gpt() {
    const model::GptOptions small{.layers = 2, .heads = 2, .width = 4, .block = 4, .vocabulary = 7};
    return deferred([&] { return std::make_shared<model::Gpt>(small); });
  }
  static checkpoint::TensorMap ones_for(const model::Model& model) {
    checkpoint::TensorMap ones;
    for (const auto& [name, tensor] : state_of(model)) ones.emplace(name, at::ones(tensor.sizes()));
    return ones;
  }

  test::TemporaryFolder folder_;
  const std::filesystem::path path_ = folder_.path() / "weights.safetensors";
};

TEST_F(FirstWeightsOfAFile, FillOnlyLayersWithMemory) {
  const auto model = gpt();
  const std::vector<model::Layer> layers = model->layers();
  open(
      ones_for(*model),
      [&](const InitialWeights* weights) {
        ASSERT_NE(weights, nullptr);
        model::materialise(layers[1]);
        weights->fill({layers[1]}, *model);
      },
      *model);
  for (const auto& [name, parameter] : layers[1].parameters)
    EXPECT_EQ(parameter.sum().item<double>(), static_cast<double>(parameter.numel())) << name;
  EXPECT_TRUE(layers[2].parameters.at(0).second.is_meta());
}

TEST_F(FirstWeightsOfAFile, MayNameTensorTwice) {
  const auto model = gpt();
  checkpoint::TensorMap tensors = ones_for(*model);
  const auto matrix = std::ranges::find_if(tensors, [](const auto& item) { return item.second.dim() == 2; });
  tensors.emplace("again", matrix->second.clone());
  open(
      tensors, [](const InitialWeights* weights) { EXPECT_NE(weights, nullptr); }, *model);
  tensors["again"] += 1;
  EXPECT_THAT(
      [&] {
        open(
            tensors, [](const InitialWeights*) {}, *model);
      },
      ThrowsMessage<DataError>(HasSubstr("1 unexpected: 'again'")));
}

TEST_F(FirstWeightsOfAFile, AreReadWholeWithDifferentFiles) {
  const auto model = gpt();
  checkpoint::TensorMap tensors = ones_for(*model);
  const auto path_of = [&](int rank) { return (folder_.path() / text(rank, ".safetensors")).string(); };
  checkpoint::save_safetensors(path_of(0), tensors);
  tensors.begin()->second += 1;
  checkpoint::save_safetensors(path_of(1), tensors);
  for (const bool alike : {true, false}) {
    comm::run_ranks_as_threads(2, [&](comm::Context& context) {
      EXPECT_EQ(InitialWeights::open(path_of(alike ? 0 : context.rank()), context, *model) != nullptr, alike);
      const std::string some = context.is_main() ? path_of(0) : path_of(2);
      EXPECT_EQ(InitialWeights::open(some, context, *model), nullptr) << "the second rank has none";
    });
  }
}

}  // namespace
}  // namespace trireme::train
