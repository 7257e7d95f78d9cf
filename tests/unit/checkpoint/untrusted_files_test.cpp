// Untrusted files of weights and of loop checkpoints.

#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <gmock/gmock.h>
#include <sys/stat.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/serialize.h>

#include <filesystem>

#include "tests/support/temporary_folder.h"
#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/checkpoint/safetensors.h"
#include "trireme/checkpoint/shard_reader.h"
#include "trireme/checkpoint/weights_file.h"
#include "trireme/checkpoint/whole_weights.h"
#include "trireme/comm/launch_environment.h"

namespace trireme::checkpoint {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;
namespace fs = std::filesystem;
namespace nn = torch::nn;

/// An archive like those of torch::save, whose module is restored by a function that writes a file.
void write_archive_with_code(const fs::path& path, const fs::path& written_by_it) {
  torch::jit::Module module("Module");
  module.register_parameter("weight", at::ones({2, 2}), /*is_buffer=*/false);
  module.define(
      text("def __getstate__(self):\n"
           "    return self.weight\n"
           "def __setstate__(self, state: Tensor):\n"
           "    self.weight = state\n"
           "    torch.save(state, \"",
           written_by_it.string(), "\")\n"));
  module.save(path.string());
}

struct Nested : nn::Module {
  Nested() {
    register_module("inner", nn::Sequential(nn::Linear(3, 4), nn::Linear(4, 2)));
    register_parameter("scale", at::rand({2}));
  }
};

class SecurityWholeWeights : public testing::Test {
 protected:
  void load(torch::nn::Module& module, const fs::path& path) const {
    comm::run_ranks_as_threads(1, [&](comm::Context& context) { load_whole(context, module, path); });
  }
  const test::TemporaryFolder folder_;
};

TEST_F(SecurityWholeWeights, CodeInAFileIsNotExecuted) {
  const fs::path archive = folder_ / "evil.pt", written = folder_ / "written";
  write_archive_with_code(archive, written);
  fs::remove(written);
  nn::Linear linear(nn::LinearOptions(2, 2).bias(false));
  EXPECT_THAT([&] { load(*linear, archive); }, ThrowsMessage<DataError>(HasSubstr("'weight'")));
  EXPECT_FALSE(fs::exists(written));
}

TEST_F(SecurityWholeWeights, NestedModulesAreReadWithoutTheirCode) {
  const auto saved = std::make_shared<Nested>(), read = std::make_shared<Nested>();
  torch::save(saved, (folder_ / "w.pt").string());
  load(*read, folder_ / "w.pt");
  for (const auto& item : saved->named_parameters())
    EXPECT_TRUE(at::equal(item.value(), *read->named_parameters().find(item.key()))) << item.key();
}

TEST_F(SecurityWholeWeights, RejectsFifoWithoutWaiting) {
  for (const char* name : {"w.pt", "w.safetensors", "w.json"}) {
    const fs::path path = folder_ / name;
    ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
    nn::Linear linear(2, 2);
    EXPECT_THROW(load(*linear, path), DataError) << name;
    EXPECT_THROW(load_weights_file(path), DataError) << name;
  }
}

/// Ranks exchange the names in a checkpoint, one per line.
TEST(SecurityShardReader, NamesWithControlCharactersAreRejected) {
  const test::TemporaryFolder folder;
  for (const std::string& name : {std::string("a\nb"), std::string("a\tb"), std::string("a\n")}) {
    const fs::path path = folder / "w.safetensors";
    save_safetensors(path, {{name, at::ones({2})}}, {});
    EXPECT_THAT([&] { ShardReader::of_files({path}); },
                ThrowsMessage<DataError>(HasSubstr("has control characters")));
  }
}

}  // namespace
}  // namespace trireme::checkpoint
