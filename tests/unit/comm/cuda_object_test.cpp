#include "trireme/comm/internal/cuda_object.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "trireme/base/error.h"
#include "trireme/comm/internal/backend_table.h"

namespace trireme::comm {
namespace {

using testing::HasSubstr;

TEST(CudaObject, UnloadableFileIsReasonNotCrash) {
  EXPECT_THAT(load_cuda_object("/nowhere/libtrireme_cuda.so").missing_because,
              HasSubstr("cannot load /nowhere/libtrireme_cuda.so"));
}

TEST(CudaObject, WithoutAGpuNcclSaysSo) {
  if (std::filesystem::exists("/dev/nvidia0")) GTEST_SKIP() << "there is a GPU here";
  EXPECT_THAT(nccl_unavailable_because(), HasSubstr("no NVIDIA GPU"));
  try {
    find_backend("nccl");
    FAIL() << "available";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), HasSubstr("no NVIDIA GPU"));
  }
}

TEST(BackendTable, AMisspeltBackendGetsTheNearestName) {
  try {
    find_backend("glo");
    FAIL() << "found";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), HasSubstr("did you mean 'gloo'"));
  }
}

}  // namespace
}  // namespace trireme::comm
