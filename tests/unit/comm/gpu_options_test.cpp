// The settings of the libraries for GPUs. They are only read here, so the test runs on any machine.
#include "trireme/comm/gpu_options.h"

#include <ATen/Context.h>
#include <gmock/gmock.h>

#include <cstdlib>

#include "trireme/base/error.h"
#include "trireme/comm/device.h"

namespace trireme::comm {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;
using testing::ThrowsMessage;

FindVariable environment_of(const std::vector<Variable>& variables) {
  return [variables](const std::string& name) -> std::optional<std::string> {
    for (const auto& [found, value] : variables) {
      if (found == name) return value;
    }
    return std::nullopt;
  };
}

TEST(GpuOptions, KeepEnvironmentWithoutNamedOptions) {
  EXPECT_THAT(gpu_variables({}, {}, environment_of({{"NCCL_DEBUG", "INFO"}})), IsEmpty());
}

TEST(GpuOptions, SetVariablesOfCudaAndNccl) {
  const CudaOptions cuda = {.visible_devices = "2,0", .deterministic = true, .expandable_segments = true};
  const NcclOptions nccl = {
      .interfaces = "ib", .adapters = "=mlx5_0:1", .ib_timeout = 22, .gpu_direct = "phb", .debug = "warn"};
  EXPECT_THAT(gpu_variables(cuda, nccl, environment_of({})),
              ElementsAre(Pair("CUDA_VISIBLE_DEVICES", "2,0"),
                          Pair("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"),
                          Pair("CUBLAS_WORKSPACE_CONFIG", ":4096:8"), Pair("NCCL_SOCKET_IFNAME", "ib"),
                          Pair("NCCL_IB_HCA", "=mlx5_0:1"), Pair("NCCL_IB_TIMEOUT", "22"),
                          Pair("NCCL_NET_GDR_LEVEL", "PHB"), Pair("NCCL_DEBUG", "WARN")));
  EXPECT_THAT(gpu_variables({}, {.infiniband = false}, environment_of({})),
              ElementsAre(Pair("NCCL_IB_DISABLE", "1")));
}

TEST(GpuOptions, ExtendAllocatorSettingsAndKeepChosenWorkspace) {
  const auto environment = environment_of(
      {{"PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64"}, {"CUBLAS_WORKSPACE_CONFIG", ":16:8"}});
  EXPECT_THAT(gpu_variables({.deterministic = true, .expandable_segments = true}, {}, environment),
              ElementsAre(Pair("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64,expandable_segments:True")));
}

TEST(GpuOptions, OfASecondContextAddNothing) {
  const auto environment = environment_of({{"PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"}});
  EXPECT_THAT(gpu_variables({.expandable_segments = true}, {}, environment), IsEmpty());
}

void expect_rejected(const CudaOptions& cuda, const NcclOptions& nccl, const std::string& message) {
  EXPECT_THAT([&] { check_gpu_options(cuda, nccl); }, ThrowsMessage<InvalidArgument>(HasSubstr(message)));
}

TEST(GpuOptions, ThatNoLibraryTakesAreRejected) {
  expect_rejected({.visible_devices = "0;1"}, {}, "cuda.visible_devices = \"0;1\": '0;1' is no GPU");
  expect_rejected({.tf32 = "al"}, {}, "cuda.tf32 = \"al\" is not known (did you mean 'all'?)");
  expect_rejected({.benchmark = true, .deterministic = true}, {}, "leave one of them out");
  expect_rejected({}, {.ib_timeout = 32}, "nccl.ib_timeout is 32; expected 1 to 31");
  expect_rejected({}, {.adapters = "mlx5", .infiniband = false}, "leave one of them out");
  expect_rejected({}, {.debug = "loud"}, "nccl.debug = \"loud\" is not known");
}

TEST(GpuOptions, VariablesThatNameMissingPartsAreFound) {
  const GpuSurroundings here = {.num_gpus = 2, .interfaces = {"lo", "eth0"}, .adapters = {"mlx5_0"}};
  const auto problem = [&](const char* name, const char* value) {
    const auto found = look_at_gpu_variables(environment_of({{name, value}}), here);
    return found.size() == 1 ? found.front().problem : "not one variable";
  };
  for (const char* fine : {"0", "1,0", "", "GPU-0a1b"})
    EXPECT_EQ(problem("CUDA_VISIBLE_DEVICES", fine), "") << fine;
  EXPECT_THAT(problem("CUDA_VISIBLE_DEVICES", "0,2"), HasSubstr("there is no GPU 2 (this host has 2)"));
  EXPECT_THAT(problem("CUDA_VISIBLE_DEVICES", "all"), HasSubstr("'all' is no GPU"));
  for (const char* fine : {"eth", "ib,eth", "=eth0", "^lo"})
    EXPECT_EQ(problem("NCCL_SOCKET_IFNAME", fine), "") << fine;
  EXPECT_EQ(problem("NCCL_SOCKET_IFNAME", "=eth"), "it leaves none of this host's interfaces (lo, eth0)");
  EXPECT_EQ(problem("NCCL_SOCKET_IFNAME", "^lo,eth"), "it leaves none of this host's interfaces (lo, eth0)");
  EXPECT_EQ(problem("NCCL_IB_HCA", "=mlx5_0:1"), "");
  EXPECT_EQ(problem("NCCL_IB_HCA", "mlx4"), "it leaves none of this host's InfiniBand adapters (mlx5_0)");
  EXPECT_EQ(problem("NCCL_NET_GDR_LEVEL", "3"), "");
  EXPECT_THAT(problem("NCCL_NET_GDR_LEVEL", "far"), HasSubstr("'far' is not one of LOC, PIX, PXB, PHB, SYS"));
  EXPECT_THAT(problem("NCCL_IB_TIMEOUT", "99"), HasSubstr("no exponent from 1 to 31"));
  EXPECT_EQ(problem("NCCL_DEBUG", "info"), "");
}

TEST(GpuOptions, ReachLibtorchAndTheEnvironment) {
  at::Context& libtorch = at::globalContext();
  const bool benchmark = libtorch.benchmarkCuDNN(), convolutions = libtorch.allowTF32CuDNN();
  settle_gpu_libraries({}, {});
  EXPECT_EQ(libtorch.benchmarkCuDNN(), benchmark);
  EXPECT_EQ(libtorch.allowTF32CuDNN(), convolutions);
  settle_gpu_libraries({.tf32 = "all", .benchmark = true}, {.debug = "version"});
  EXPECT_TRUE(libtorch.benchmarkCuDNN());
  EXPECT_TRUE(libtorch.allowTF32CuDNN());
  EXPECT_TRUE(libtorch.allowTF32CuBLAS());
  EXPECT_STREQ(std::getenv("NCCL_DEBUG"), "VERSION");
  settle_gpu_libraries({.tf32 = "none", .deterministic = true}, {});
  EXPECT_FALSE(libtorch.allowTF32CuDNN());
  EXPECT_FALSE(libtorch.allowTF32CuBLAS());
  EXPECT_TRUE(libtorch.deterministicCuDNN());
  EXPECT_STREQ(std::getenv("CUBLAS_WORKSPACE_CONFIG"), ":4096:8");
  libtorch.setBenchmarkCuDNN(benchmark);
  libtorch.setDeterministicCuDNN(false);
  libtorch.setAllowTF32CuDNN(convolutions);
  ::unsetenv("NCCL_DEBUG");
  ::unsetenv("CUBLAS_WORKSPACE_CONFIG");
}

}  // namespace
}  // namespace trireme::comm
