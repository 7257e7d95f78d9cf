#include "trireme/train/parts/convolutions.h"

#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>

#include "tests/support/temporary_folder.h"
#include "tests/support/trainer_state.h"
#include "trireme/base/error.h"
#include "trireme/base/files.h"
#include "trireme/model/convolution_measurement.h"
#include "trireme/model/initialise.h"
#include "trireme/parallel/convolution_agreement.h"
#include "trireme/train/run/recovery.h"
#include "trireme/train/run/run.h"
#include "trireme/train/run/verify.h"
#include "trireme/train/step/trainer.h"

namespace trireme::train {
namespace {

using model::ConvolutionChoice;
using model::ConvolutionKernel;
using testing::HasSubstr;
using testing::Not;

/// Planes of 2x2 pixels, with a 1x1 convolution of them.
class SmallPlanes : public model::Model {
 public:
  SmallPlanes() {
    register_module("first", first_);
    register_module("small", small_);
    register_module("last", last_);
    model::initialise(*this, /*seed=*/1);
  }
  at::Tensor forward(const at::Tensor& input) override {
    return last_->forward(small_->forward(first_->forward(input)).relu().flatten(1));
  }

 private:
  torch::nn::Conv2d first_{torch::nn::Conv2dOptions(1, 256, 14).stride(14)};
  torch::nn::Conv2d small_{torch::nn::Conv2dOptions(256, 64, 1)};
  torch::nn::Linear last_{64 * 4, 10};
};

/// The machine is simulated by its cache of measurements. Each test begins with an empty cache.
class ConvolutionsOfARun : public testing::Test {
 protected:
  void SetUp() override {
    const char* cache = std::getenv("XDG_CACHE_HOME");
    if (cache != nullptr) before_ = cache;
    this_machine_likes(ConvolutionKernel::kAten);
  }
  void TearDown() override {
    before_.empty() ? ::unsetenv("XDG_CACHE_HOME") : ::setenv("XDG_CACHE_HOME", before_.c_str(), 1);
  }

  /// Fills a new cache with the kernel as the fastest one for a rank with one thread.
  void this_machine_likes(ConvolutionKernel kernel) {
    ::setenv("XDG_CACHE_HOME", (folder_ / text("machine", ++machines_)).c_str(), 1);
    comm::run_ranks_as_threads(1, [&](comm::Context&) { fill_cache(kernel); }, {.torch_threads = 1});
  }

  RunConfig config(const std::string& name, std::int64_t steps) const {
    RunConfig config;
    config.run = {.name = name, .folder = folder_.path().string(), .seed = 5};
    config.data.name = "synthetic";
    config.train = {.max_steps = steps, .global_batch = 16, .clip_norm = 1};
    config.optimizer = {.name = "sgd", .lr = 0.1, .momentum = 0.9};
    config.checkpoint = {.every_steps = 2};
    return config;
  }

  std::string weights_of(const RunConfig& config, int ranks = 2, RunStart start = RunStart::kFresh) {
    std::string digest;
    comm::run_ranks_as_threads(ranks,
                               [&](comm::Context& context) {
                                 const RunResult mine =
                                     run_training(config, context,
                                                  {.start = start, .model = std::make_shared<SmallPlanes>()});
                                 if (context.is_main()) digest = mine.weights_xxh3;
                               },
                               {.torch_threads = 1});
    return digest;
  }

  const test::TemporaryFolder folder_;

 private:
  static void fill_cache(ConvolutionKernel kernel) {
    model::ConvolutionTimes times;
    for (const bool channels_last : {false, true}) {
      for (const auto each :
           {ConvolutionKernel::kAten, ConvolutionKernel::kOnednn, ConvolutionKernel::kProduct})
        times[{channels_last, each}] = {100, 100, 100};
    }
    times[{kernel == ConvolutionKernel::kProduct, kernel}] = {1, 1, 1};
    const auto model = std::make_shared<SmallPlanes>();
    for (const std::int64_t batch : {8, 16}) {
      model::cached_convolutions(model::convolution_cache_folder(), model::convolution_conditions(),
                                 convolutions_of(*model, at::zeros({1, 1, 28, 28}), batch),
                                 [&](const model::ConvolutionShape&, std::int64_t) { return times; });
    }
  }

  std::string before_;
  int machines_ = 0;
};

TEST_F(ConvolutionsOfARun, AreThoseMeasuredOnMachine) {
  RunConfig by_name = config("by_name", 2);
  by_name.train.convolution = "aten";
  const std::string atens = weights_of(by_name);
  by_name.train.convolution = "onednn";
  const std::string onednns = weights_of(by_name);
  ASSERT_NE(atens, onednns) << "both went the same way";
  EXPECT_EQ(weights_of(config("a", 2)), atens);
  this_machine_likes(ConvolutionKernel::kOnednn);
  EXPECT_EQ(weights_of(config("b", 2)), onednns);
  by_name.train.convolution = "product";
  const std::string products = weights_of(by_name);
  ASSERT_NE(products, atens);
  this_machine_likes(ConvolutionKernel::kProduct);
  EXPECT_EQ(weights_of(config("c", 2)), products);
}

TEST_F(ConvolutionsOfARun, FollowMemoryFormatOrFasterLayout) {
  this_machine_likes(ConvolutionKernel::kProduct);
  const std::string products = weights_of(config("a", 2));
  RunConfig contiguous = config("b", 2);
  contiguous.train.memory_format = "contiguous";
  const std::string as_contiguous = weights_of(contiguous);
  EXPECT_NE(as_contiguous, products);
  this_machine_likes(ConvolutionKernel::kAten);
  EXPECT_EQ(weights_of(config("c", 2)), as_contiguous);
  RunConfig last = config("d", 2);
  last.train = {.max_steps = 2, .global_batch = 16, .convolution = "aten", .memory_format = "channels_last"};
  EXPECT_EQ(weights_of(last).size(), as_contiguous.size());
}

TEST_F(ConvolutionsOfARun, ByProductsOverContiguousActivationsAreRejected) {
  RunConfig both = config("a", 2);
  both.train.convolution = "product";
  both.train.memory_format = "contiguous";
  EXPECT_THAT([&] { weights_of(both, 1); },
              testing::ThrowsMessage<InvalidArgument>(HasSubstr("lays activations out as channels_last")));
}

TEST_F(ConvolutionsOfARun, StayUnchangedWhenResumedElsewhere) {
  this_machine_likes(ConvolutionKernel::kOnednn);
  const std::string undisturbed = weights_of(config("undisturbed", 4));
  weights_of(config("moved", 2));
  this_machine_likes(ConvolutionKernel::kAten);
  ASSERT_NE(weights_of(config("all_on_the_other_machine", 4)), undisturbed);
  testing::internal::CaptureStderr();
  EXPECT_EQ(weights_of(config("moved", 4), 2, RunStart::kResume), undisturbed);
  EXPECT_THAT(
      testing::internal::GetCapturedStderr(),
      HasSubstr("as the run began, so that its numbers stay; this machine would take ATen's kernels"));
}

TEST_F(ConvolutionsOfARun, ResumedWhereItBeganSayNothing) {
  weights_of(config("a", 2));
  testing::internal::CaptureStderr();
  weights_of(config("a", 4), 2, RunStart::kResume);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), Not(HasSubstr("convolutions: ")));
}

constexpr const char* kKernels = "optimizer/convolutions/kernels";

StatePart part_of_kernels(Trainer& trainer) {
  for (StatePart& part : trainer.state()) {
    if (part.prefix == kKernels) return part;
  }
  throw InvalidArgument("a trainer keeps no choice of kernels");
}

TEST_F(ConvolutionsOfARun, AreMeasuredForCheckpointWithoutThem) {
  comm::run_ranks_as_threads(1, [&](comm::Context& context) {
    const RunConfig of_run = config("a", 2);
    const data::DataSource data = data::open_data(of_run.data, 5, context.log());
    Trainer trainer(of_run, context, data, std::make_shared<SmallPlanes>());
    const at::Tensor before = test::state_under(trainer, kKernels).at(0).tensor;
    EXPECT_TRUE(part_of_kernels(trainer).restore({}).shards.empty()) << "nothing is asked for";
    trainer.seek(0);
    EXPECT_TRUE(test::state_under(trainer, kKernels).at(0).tensor.equal(before));
  });
}

TEST_F(ConvolutionsOfARun, CheckpointMayListOtherShapes) {
  comm::run_ranks_as_threads(1, [&](comm::Context& context) {
    const RunConfig of_run = config("a", 2);
    const data::DataSource data = data::open_data(of_run.data, 5, context.log());
    Trainer trainer(of_run, context, data, std::make_shared<SmallPlanes>());
    const std::string text = to_text(ConvolutionChoice::onednn());
    const StoredSizes stored = {{kKernels, {static_cast<std::int64_t>(text.size())}}};
    const at::Tensor restored = part_of_kernels(trainer).restore(stored).shards.at(0).tensor;
    std::copy(text.begin(), text.end(), restored.data_ptr<std::uint8_t>());
    testing::internal::CaptureStderr();
    trainer.seek(0);
    EXPECT_THAT(testing::internal::GetCapturedStderr(),
                HasSubstr("of 3 passes 0 as one product, 3 by oneDNN"));
    trainer.step();
  });
}

TEST_F(ConvolutionsOfARun, CannotBeChangedByResume) {
  weights_of(config("a", 2));
  RunConfig changed = config("a", 4);
  changed.train.convolution = "onednn";
  EXPECT_THROW(weights_of(changed, 1, RunStart::kResume), InvalidArgument);
}

TEST_F(ConvolutionsOfARun, AreRankZerosOnAllRanks) {
  std::mutex mutex;
  std::vector<ConvolutionChoice> found;
  comm::run_ranks_as_threads(3, [&](comm::Context& context) {
    const ConvolutionChoice mine = context.is_main() ? ConvolutionChoice::onednn() : ConvolutionChoice{};
    const ConvolutionChoice ours = parallel::agreed(context.world(), mine);
    const std::lock_guard lock(mutex);
    found.push_back(ours);
  });
  EXPECT_THAT(found, testing::Each(ConvolutionChoice::onednn()));
}

TEST_F(ConvolutionsOfARun, AreSameInSerialVerificationSteps) {
  this_machine_likes(ConvolutionKernel::kOnednn);
  std::string first_cache = std::getenv("XDG_CACHE_HOME");
  bool equal = false;
  comm::run_ranks_as_threads(2,
                             [&](comm::Context& context) {
                               const RunConfig of_run = config("verified", 3);
                               const data::DataSource data = data::open_data(of_run.data, 5, context.log());
                               int made = 0;
                               // The serial trainer, the second one of rank 0, finds the cache of another
                               // machine.
                               const auto make_own = [&] {
                                 if (context.is_main() && ++made == 2)
                                   this_machine_likes(ConvolutionKernel::kAten);
                                 return std::make_shared<SmallPlanes>();
                               };
                               const Comparison comparison =
                                   verify(of_run, context, data, 3, {.make_model = make_own});
                               if (context.is_main())
                                 equal = comparison.equal() && comparison.largest().difference == 0;
                             },
                             {.torch_threads = 1});
  EXPECT_TRUE(equal);
  EXPECT_NE(std::getenv("XDG_CACHE_HOME"), first_cache) << "the serial trainer was not the second one";
}

}  // namespace
}  // namespace trireme::train
