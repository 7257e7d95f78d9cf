// The weights of a whole model in one file, saved from and loaded into replicas, shards and pipelines.
#include "trireme/checkpoint/whole_weights.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <sys/resource.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/serialize.h>

#include <atomic>
#include <csignal>
#include <fstream>
#include <optional>

#include "tests/support/temporary_folder.h"
#include "tests/unit/parallel/small_models.h"
#include "trireme/base/error.h"
#include "trireme/comm/launch_environment.h"
#include "trireme/comm/mesh.h"
#include "trireme/train/run/sharded_loop.h"

namespace trireme::train {
namespace {

using checkpoint::load_whole;
using checkpoint::LoopModel;
using checkpoint::save_whole;
using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;
namespace nn = torch::nn;

/// Weights begin with `first`. Buffers are those of rank 0 plus `rank`.
nn::Sequential normalised_net(double first, int rank = 0, int width = 5) {
  nn::Sequential net(nn::Linear(4, width), nn::BatchNorm1d(width), nn::Tanh(), nn::Linear(width, 3));
  const at::NoGradGuard no_grad;
  for (at::Tensor parameter : net->parameters()) {
    parameter.copy_(test::numbers(parameter.sizes(), static_cast<int>(first)));
    parameter.add_(first);
  }
  for (at::Tensor buffer : net->buffers()) buffer.fill_(first + 100 * rank);
  return net;
}

void expect_same(const nn::Sequential& found, const nn::Sequential& expected) {
  const checkpoint::TensorMap wanted = checkpoint::state_of(*expected);
  for (const auto& [name, tensor] : checkpoint::state_of(*found))
    EXPECT_TRUE(at::equal(tensor, wanted.at(name))) << name << "\n" << tensor << wanted.at(name);
}

/// One kind of loop over a net.
struct Kind {
  const char* name;
  int ranks;
  const char* backend;
  bool is_replicated;  ///< each rank has the buffers of the whole model
  std::function<void(comm::Context&, nn::Sequential&, const std::function<void(const LoopModel&)>&)> use;
};

std::vector<Kind> kinds() {
  using Body = std::function<void(const LoopModel&)>;
  const auto staged = [](const Body& body, comm::Context& context, comm::Mesh& mesh, nn::Sequential& net,
                         parallel::ZeroStage zero) {
    parallel::PipelineOptions options{.schedule = "gpipe", .num_microbatches = 2};
    options.zero.stage = zero;
    parallel::Pipeline pipe(context, {.pipeline = mesh.group("pp"), .data = mesh.group("dp")},
                            model::layers_of(net), options);
    body(pipeline_loop(pipe));
  };
  return {{"replicas", 2, "threads", true,
           [](comm::Context&, nn::Sequential& net, const Body& body) {
             body(checkpoint::replicated_loop(*net));
           }},
          {"shards", 3, "gloo", true,
           [](comm::Context& context, nn::Sequential& net, const Body& body) {
             parallel::FullyShardedDataParallel sharded(context, model::layers_of(net));
             body(sharded_loop(sharded));
           }},
          {"stages", 2, "shm", false,
           [=](comm::Context& context, nn::Sequential& net, const Body& body) {
             comm::Mesh mesh(context, {{"dp", 1}, {"pp", 2}});
             staged(body, context, mesh, net, parallel::ZeroStage::kNone);
           }},
          {"sharded_stages", 4, "gloo", false,
           [=](comm::Context& context, nn::Sequential& net, const Body& body) {
             comm::Mesh mesh(context, {{"dp", 2}, {"pp", 2}});
             staged(body, context, mesh, net, parallel::ZeroStage::kParameters);
           }}};
}

class WholeWeights : public testing::TestWithParam<std::tuple<Kind, const char*>> {
 protected:
  using Body = std::function<void(comm::Context&, const LoopModel&, const nn::Sequential&)>;
  void run(const Body& body, double first, int width = 5) {
    const Kind& kind = std::get<0>(GetParam());
    const auto on_rank = [&](comm::Context& context) {
      nn::Sequential net = normalised_net(first, kind.is_replicated ? context.rank() : 0, width);
      kind.use(context, net, [&](const LoopModel& model) { body(context, model, net); });
    };
    comm::run_ranks_as_threads(kind.ranks, on_rank, {.backend = kind.backend, .timeout_s = 20});
  }
  std::filesystem::path file() const { return folder_ / std::get<1>(GetParam()); }
  test::TemporaryFolder folder_;
};

TEST_P(WholeWeights, AreWrittenForAModuleAlone) {
  run([&](comm::Context& context, const LoopModel& model,
          const nn::Sequential& net) { save_whole(context, model, *net, file()); },
      2);
  nn::Sequential net = normalised_net(5);
  if (file().extension() == ".pt") {
    torch::load(net, file().string());
  } else {
    comm::run_ranks_as_threads(1, [&](comm::Context& context) { load_whole(context, *net, file()); });
  }
  expect_same(net, normalised_net(2));
}

TEST_P(WholeWeights, OfAModuleAloneAreRead) {
  nn::Sequential net = normalised_net(3);
  if (file().extension() == ".pt") {
    torch::save(net, file().string());
  } else {
    comm::run_ranks_as_threads(1, [&](comm::Context& context) { save_whole(context, *net, file()); });
  }
  run(
      [&](comm::Context& context, const LoopModel& model, const nn::Sequential&) {
        load_whole(context, model, file());
        save_whole(context, model, folder_ / "again.safetensors");
      },
      7);
  nn::Sequential again = normalised_net(9);
  comm::run_ranks_as_threads(
      1, [&](comm::Context& context) { load_whole(context, *again, folder_ / "again.safetensors"); });
  expect_same(again, normalised_net(3));
}

TEST_P(WholeWeights, RejectAnotherModelOnEveryRank) {
  run([&](comm::Context& context, const LoopModel& model,
          const nn::Sequential& net) { save_whole(context, model, *net, file()); },
      2);
  std::atomic<int> rejected = 0;
  run(
      [&](comm::Context& context, const LoopModel& model, const nn::Sequential&) {
        EXPECT_THAT(
            [&] { load_whole(context, model, file()); },
            ThrowsMessage<DataError>(AllOf(HasSubstr(file().filename().string()), HasSubstr("'0.weight'"))));
        EXPECT_THROW(load_whole(context, model, folder_ / "missing.pt"), DataError);
        ++rejected;
      },
      2, 6);
  EXPECT_EQ(rejected, std::get<0>(GetParam()).ranks);
}

TEST_P(WholeWeights, FailedWriteIsErrorEverywhereAndRepeatable) {
  std::atomic<int> failed = 0;
  run(
      [&](comm::Context& context, const LoopModel& model, const nn::Sequential& net) {
        for (int i = 0; i < 2; ++i) {
          EXPECT_THAT([&] { save_whole(context, model, *net, folder_ / "missing" / file().filename()); },
                      ThrowsMessage<DataError>(HasSubstr("missing")));
        }
        ++failed;
        save_whole(context, model, *net, file());
      },
      2);
  EXPECT_EQ(failed, std::get<0>(GetParam()).ranks);
  EXPECT_TRUE(std::filesystem::exists(file()));
}

/// Limits the size of files of this process while the object exists.
class SmallFiles {
 public:
  explicit SmallFiles(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit small{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &small);
  }
  ~SmallFiles() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }
  SmallFiles(const SmallFiles&) = delete;
  SmallFiles& operator=(const SmallFiles&) = delete;

 private:
  void (*const handler_)(int);
  rlimit before_{};
};

TEST_P(WholeWeights, FullDiskIsErrorOfEveryRank) {
  std::atomic<int> failed = 0;
  run(
      [&](comm::Context& context, const LoopModel& model, const nn::Sequential& net) {
        std::optional<SmallFiles> limit;
        if (context.is_main()) limit.emplace(20'000);
        EXPECT_THROW(save_whole(context, model, *net, file()), DataError);
        ++failed;
      },
      2, /*width=*/3000);
  EXPECT_EQ(failed, std::get<0>(GetParam()).ranks);
  EXPECT_FALSE(std::filesystem::exists(file()));
}

INSTANTIATE_TEST_SUITE_P(Kinds, WholeWeights,
                         testing::Combine(testing::ValuesIn(kinds()),
                                          testing::Values("w.safetensors", "w.pt")),
                         [](const auto& row) {
                           const std::string file = std::get<1>(row.param);
                           return text(std::get<0>(row.param).name, "_", file.substr(2));
                         });

TEST(WholeWeightsFile, ForTorchNeedsTheModule) {
  const test::TemporaryFolder folder;
  comm::run_ranks_as_threads(1, [&](comm::Context& context) {
    nn::Sequential net = normalised_net(4);
    EXPECT_THAT([&] { save_whole(context, checkpoint::replicated_loop(*net), folder / "w.pt"); },
                ThrowsMessage<InvalidArgument>(HasSubstr("save_whole(context, model, module, path)")));
    nn::Sequential larger = normalised_net(4);
    larger->push_back(nn::Linear(3, 3));
    EXPECT_THAT([&] { save_whole(context, checkpoint::replicated_loop(*net), *larger, folder / "w.pt"); },
                ThrowsMessage<InvalidArgument>(HasSubstr("has no '4.weight'")));
  });
}

TEST(WholeWeightsFile, ThatIsDamagedIsRejected) {
  const test::TemporaryFolder folder;
  nn::Sequential net = normalised_net(3);
  torch::save(net, (folder / "w.pt").string());
  std::filesystem::resize_file(folder / "w.pt", 700);
  std::ofstream(folder / "x.pt") << "no weights";
  comm::run_ranks_as_threads(2, [&](comm::Context& context) {
    nn::Sequential own = normalised_net(4);
    for (const char* name : {"w.pt", "x.pt"})
      EXPECT_THROW(load_whole(context, *own, folder / name), DataError) << name;
    expect_same(own, normalised_net(4));
    EXPECT_THROW(save_whole(context, *own, folder / "missing" / "w.pt"), DataError);
  });
}

}  // namespace
}  // namespace trireme::train
