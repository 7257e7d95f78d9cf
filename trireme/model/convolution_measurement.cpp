#include "trireme/model/convolution_measurement.h"

#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <torch/nn/modules/conv.h>
#include <torch/version.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <sstream>

#include "trireme/base/error.h"
#include "trireme/base/files.h"
#include "trireme/base/host.h"
#include "trireme/base/text.h"
#include "trireme/model/convolution_scope.h"
#include "trireme/model/deferred.h"
#include "trireme/model/internal/convolution_timing.h"

namespace trireme::model {
namespace {

constexpr int kTurns = 5;
constexpr double kEnoughUs = 1e5;
constexpr double kWorthIt = 1.1;
constexpr std::array kPasses{&PassTimes::forward_us, &PassTimes::of_input_us, &PassTimes::of_weight_us};
constexpr std::array kKernels{&PassKernels::forward, &PassKernels::of_input, &PassKernels::of_weight};

/// Environment variables with which a user chooses the instructions of the libraries.
constexpr std::array<const char*, 5> kSettings{"ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA",
                                               "DNNL_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS", "MKL_CBWR"};

/// The kernels of one shape in one layout, and their time in microseconds.
struct Taken {
  PassKernels kernels;
  double us = 0;
};

Taken fastest_in(bool channels_last, const ConvolutionTimes& times) {
  const PassTimes& atens = times.at({channels_last, ConvolutionKernel::kAten});
  Taken taken;
  for (std::size_t pass = 0; pass < kPasses.size(); ++pass) {
    double min_us = atens.*kPasses[pass] / kWorthIt;
    taken.us += atens.*kPasses[pass];
    for (const auto& [way, each] : times) {
      if (way.channels_last != channels_last || each.*kPasses[pass] >= min_us) continue;
      min_us = each.*kPasses[pass];
      taken.kernels.*kKernels[pass] = way.kernel;
    }
    if (taken.kernels.*kKernels[pass] != ConvolutionKernel::kAten) {
      taken.us += min_us - atens.*kPasses[pass];
    }
  }
  return taken;
}

ConvolutionChoice fastest_in(bool channels_last, const Convolutions& convolutions,
                             const std::vector<ConvolutionTimes>& times, double& sum_us) {
  ConvolutionChoice choice{.channels_last = channels_last};
  sum_us = 0;
  for (std::size_t i = 0; i < times.size(); ++i) {
    const Taken taken = fastest_in(channels_last, times[i]);
    choice.kernels[convolutions.shapes[i]] = taken.kernels;
    sum_us += taken.us;
  }
  return choice;
}

bool has_convolutions(const Model& model) {
  return std::ranges::any_of(model.modules(), [](const auto& module) {
    return module->template as<torch::nn::Conv2dImpl>() != nullptr;
  });
}

bool is_on_cpu(const Model& model) {
  return std::ranges::all_of(model.parameters(), [](const at::Tensor& parameter) {
    return parameter.is_cpu() || parameter.is_meta();
  });
}

/// FNV-1a, for file names and detection of damage. It is not a protection against attackers.
std::string hash_of(const std::string& content) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char c : content) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  std::array<char, 17> digits{};
  std::snprintf(digits.data(), digits.size(), "%016llx", static_cast<unsigned long long>(hash));
  return digits.data();
}

constexpr const char* kTitle = "trireme: times of convolutions, as measured; may be deleted\n";

/// By batch size and shape, as text.
using Table = std::map<std::string, ConvolutionTimes>;

std::string key_of(std::int64_t batch, const ConvolutionShape& shape) {
  return text(batch, "*", to_text(shape));
}

/// One line "KEY LAYOUT KERNEL FORWARD OF_INPUT OF_WEIGHT" per way, in tenths of microseconds as whole
/// numbers.
std::string content_of(const std::string& conditions, const Table& table) {
  std::ostringstream body;
  body << kTitle << conditions;
  for (const auto& [key, times] : table) {
    for (const auto& [way, each] : times) {
      body << key << (way.channels_last ? " nhwc " : " nchw ") << static_cast<int>(way.kernel);
      for (const auto pass : kPasses) body << ' ' << std::llround(each.*pass * 10);
      body << '\n';
    }
  }
  return text(body.str(), "check: ", hash_of(body.str()), "\n");
}

/// The table of an intact file with these conditions.
std::optional<Table> table_in(const std::string& content, const std::string& conditions) {
  const std::string head = kTitle + conditions;
  if (!content.starts_with(head)) return std::nullopt;
  Table table;
  std::istringstream in(content.substr(head.size()));
  std::string key, layout;
  int kernel = 0;
  while (in >> key && key != "check:" && in >> layout >> kernel) {
    PassTimes& each =
        table[key][{.channels_last = layout == "nhwc", .kernel = static_cast<ConvolutionKernel>(kernel)}];
    for (const auto pass : kPasses) {
      std::int64_t tenths = 0;
      in >> tenths;
      each.*pass = static_cast<double>(tenths) / 10;
    }
  }
  if (content_of(conditions, table) != content) return std::nullopt;
  return table;
}

Table kept_table(const std::filesystem::path& file, const std::string& conditions) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(file, error)) return {};
  try {
    return table_in(read_file(file), conditions).value_or(Table());
  } catch (const Error&) {
    return {};
  }
}

std::string setting(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string() : text(" ", name, "=", value);
}

}  // namespace

Convolutions convolutions_of(Model& model, const Fields& inputs, std::int64_t batch) {
  if (!has_convolutions(model) || !is_on_cpu(model)) return {};
  const Fields first = inputs.map([](const at::Tensor& all) { return all.narrow(0, 0, 1); });
  return {.shapes = convolutions_in([&] { outputs_of_trial(model, first); }), .batch = batch};
}

ConvolutionChoice fastest(const Convolutions& convolutions, const std::vector<ConvolutionTimes>& times) {
  double contiguous_us = 0, last_us = 0;
  ConvolutionChoice contiguous = fastest_in(false, convolutions, times, contiguous_us),
                    last = fastest_in(true, convolutions, times, last_us);
  return convolutions.channels_last.value_or(last_us * kWorthIt < contiguous_us) ? last : contiguous;
}

ConvolutionTimes measure_convolution(const ConvolutionShape& shape, std::int64_t batch) {
  return ConvolutionTimer(shape, batch).time(kTurns, kEnoughUs);
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
  // The XDG base directory specification requires that relative paths are ignored.
  for (const auto& [name, below] :
       {std::pair("XDG_CACHE_HOME", "trireme"), std::pair("HOME", ".cache/trireme")}) {
    const char* value = std::getenv(name);
    if (value != nullptr && *value == '/') return std::filesystem::path(value) / below;
  }
  return {};
}

CachedTimes cached_convolutions(const std::filesystem::path& folder, const std::string& conditions,
                                const Convolutions& convolutions,
                                const std::function<decltype(measure_convolution)>& measure) {
  const std::filesystem::path file = folder / text("convolutions-", hash_of(conditions));
  Table table = folder.empty() ? Table() : kept_table(file, conditions);
  CachedTimes result;
  for (const ConvolutionShape& shape : convolutions.shapes) {
    const std::string key = key_of(convolutions.batch, shape);
    if (!table.contains(key)) {
      table[key] = measure(shape, convolutions.batch);
      ++result.measured_now;
    }
    result.times.push_back(table[key]);
  }
  if (folder.empty() || result.measured_now == 0) return result;
  try {
    make_folder(folder);
    write_file_atomic(file, content_of(conditions, table));
  } catch (const DataError& error) {
    result.not_kept_because = error.what();
  }
  return result;
}

}  // namespace trireme::model
