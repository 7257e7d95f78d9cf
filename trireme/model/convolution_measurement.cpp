#include "trireme/model/convolution_measurement.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <torch/version.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <optional>

#include "trireme/base/error.h"
#include "trireme/base/files.h"
#include "trireme/base/host.h"
#include "trireme/base/text.h"
#include "trireme/model/internal/convolution_timing.h"

namespace trireme::model {
namespace {

// A convolution of a bottleneck block at each plane; fewer channels than ResNet-50's last ones, as the ratio
// is the same and the time is not.
constexpr std::array<std::int64_t, ConvolutionChoice::kNumPlanes> kSides{2, 4, 7};
constexpr std::int64_t kNarrow = 256, kWide = 1024;
constexpr std::array<std::int64_t, 4> kBatches{8, 4, 2, 1};
constexpr int kRounds = 3, kTurns = 5;
constexpr double kWorthIt = 1.1;

/// By which a user chooses the instructions of the libraries.
constexpr std::array<const char*, 5> kSettings{"ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA",
                                               "DNNL_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS", "MKL_CBWR"};

bool onednn_is_worth_it(const TimedShape& shape) {
  const ConvolutionTimer timer(shape);
  for (int round = 0; round < kRounds; ++round) {
    if (timer.time(kTurns).speedup() < kWorthIt) return false;
  }
  return true;
}

/// What smaller batches gain is less: the first that gains nothing ends the search.
std::int64_t least_batch(TimedShape shape) {
  std::int64_t least = ConvolutionChoice::kAtenEnds;
  for (const std::int64_t batch : kBatches) {
    shape.batch = batch;
    if (!onednn_is_worth_it(shape)) break;
    least = batch;
  }
  return least;
}

/// FNV-1a: names files and finds damage; nobody is kept out by it.
std::string hash_of(const std::string& content) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char c : content) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  std::array<char, 17> digits{};
  std::snprintf(digits.data(), digits.size(), "%016llx", static_cast<unsigned long long>(hash));
  return digits.data();
}

constexpr const char* kTitle = "trireme: kernels of small convolutions, as measured; may be deleted\n";

std::string content_of(const std::string& conditions, const ConvolutionChoice& choice) {
  const std::string body = text(kTitle, conditions, "least batch for oneDNN: ", to_text(choice), "\n");
  return text(body, "check: ", hash_of(body), "\n");
}

/// The choice in a file of these conditions that is whole.
std::optional<ConvolutionChoice> choice_in(const std::string& content, const std::string& conditions) {
  const std::string mark = "least batch for oneDNN: ";
  const std::size_t at = content.find(mark);
  if (at == std::string::npos) return std::nullopt;
  const std::size_t begin = at + mark.size(), end = content.find('\n', begin);
  if (end == std::string::npos) return std::nullopt;
  const ConvolutionChoice choice = convolution_choice_from(content.substr(begin, end - begin));
  if (content_of(conditions, choice) != content) return std::nullopt;
  return choice;
}

std::optional<ConvolutionChoice> kept_choice(const std::filesystem::path& file,
                                             const std::string& conditions) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(file, error)) return std::nullopt;
  try {
    return choice_in(read_file(file), conditions);
  } catch (const Error&) {
    return std::nullopt;
  }
}

std::string setting(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string() : text(" ", name, "=", value);
}

}  // namespace

ConvolutionChoice measure_convolutions() {
  ConvolutionChoice choice;
  if (at::get_num_threads() != 1 || !at::hasMKLDNN() || !at::globalContext().userEnabledMkldnn())
    return choice;
  for (std::size_t plane = 0; plane < kSides.size(); ++plane) {
    choice.least_batch[plane] = {least_batch({.in = kWide, .out = kNarrow, .side = kSides[plane]}),
                                 least_batch({.in = kNarrow, .out = kWide, .side = kSides[plane]})};
  }
  return choice;
}

std::string convolution_conditions() {
  std::string settings;
  for (const char* name : kSettings) settings += setting(name);
  const Processor here = processor();
  return text("processor: ", here.model, "\ninstructions: ", at::get_cpu_capability(), ", flags ",
              hash_of(here.instructions), settings, "\nthreads: ", at::get_num_threads(),
              "\nlibtorch: ", TORCH_VERSION, "\n");
}

std::filesystem::path convolution_cache_folder() {
  // The XDG base directory specification: what is not absolute is ignored.
  for (const auto& [name, below] :
       {std::pair("XDG_CACHE_HOME", "trireme"), std::pair("HOME", ".cache/trireme")}) {
    const char* value = std::getenv(name);
    if (value != nullptr && *value == '/') return std::filesystem::path(value) / below;
  }
  return {};
}

CachedChoice cached_convolutions(const std::filesystem::path& folder, const std::string& conditions,
                                 const std::function<ConvolutionChoice()>& measure) {
  if (folder.empty()) return {.choice = measure(), .measured_now = true};
  const std::filesystem::path file = folder / text("convolutions-", hash_of(conditions));
  if (const auto kept = kept_choice(file, conditions)) return {.choice = *kept};
  CachedChoice result{.choice = measure(), .measured_now = true};
  try {
    make_folder(folder);
    write_file_atomic(file, content_of(conditions, result.choice));
  } catch (const DataError& error) {
    result.not_kept_because = error.what();
  }
  return result;
}

}  // namespace trireme::model
