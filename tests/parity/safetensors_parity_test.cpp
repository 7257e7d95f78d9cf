#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <limits>

#include "tests/support/child_process.h"
#include "tests/support/paths.h"
#include "tests/support/temporary_folder.h"
#include "trireme/checkpoint/safetensors.h"

namespace trireme::checkpoint {
namespace {

const std::filesystem::path kFolder = test::checkout("tests/parity");
const std::map<std::string, std::string> kMetadata = {{"made by", "safetensors"},
                                                      {"quote", "a \"b\" \\ \n \u00e4"}};

/// The tensors that safetensors_reference.py writes and expects.
TensorMap expected_tensors() {
  const std::vector<std::pair<std::string, at::ScalarType>> types = {
      {"float64", at::kDouble}, {"float32", at::kFloat}, {"float16", at::kHalf}, {"bfloat16", at::kBFloat16},
      {"int64", at::kLong},     {"int32", at::kInt},     {"int16", at::kShort},  {"int8", at::kChar},
      {"uint8", at::kByte},     {"bool", at::kBool}};
  TensorMap tensors;
  for (const auto& [name, type] : types) {
    const int shift = type == at::kByte || type == at::kBool ? 0 : 2;
    tensors[name] = (at::arange(6) - shift).to(type).reshape({2, 3});
  }
  tensors["no dims"] = at::full({}, 7.5);
  tensors["no elements"] = at::zeros({0, 3});
  tensors["layer.0.weight"] =
      at::tensor(std::vector<float>{0.1F, -0.0F, std::numeric_limits<float>::infinity(), 1e-40F})
          .reshape({2, 2});
  return tensors;
}

TEST(SafetensorsParity, ReadsFilesOfThePythonPackage) {
  const SafetensorsFile file = load_safetensors(kFolder / "data/safetensors_python.safetensors");
  EXPECT_EQ(file.metadata, kMetadata);
  EXPECT_EQ(xxh3_of(file.tensors), xxh3_of(expected_tensors()));
}

TEST(SafetensorsParity, PythonPackageReadsFilesOfTrireme) {
  const char* chosen = std::getenv("TRIREME_PYTHON");
  const std::string python = chosen == nullptr ? "python3" : chosen;
  const std::string script = (kFolder / "safetensors_reference.py").string();
  if (test::run({python, "-c", "import torch, safetensors.torch"}).exit_code != 0) {
    GTEST_SKIP() << python << " has no torch and safetensors; set TRIREME_PYTHON to a Python that has";
  }
  const test::TemporaryFolder folder;
  save_safetensors(folder / "ours.safetensors", expected_tensors(), kMetadata);
  const test::ChildResult result =
      test::run({python, script, "check", (folder / "ours.safetensors").string()});
  EXPECT_EQ(result.exit_code, 0) << result.err;
}

}  // namespace
}  // namespace trireme::checkpoint
