#include "trireme/model/convolution_choice.h"

#include <algorithm>
#include <charconv>
#include <sstream>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/base/text.h"

namespace trireme::model {
namespace {

constexpr std::array kLetters{'a', 'o', 'p'};  // in the order of the enumerators

std::string letters(const PassKernels& kernels) {
  std::string text;
  for (const ConvolutionKernel kernel : {kernels.forward, kernels.of_input, kernels.of_weight})
    text += kLetters[static_cast<std::size_t>(kernel)];
  return text;
}

ConvolutionKernel kernel_of(char letter) {
  const auto at = std::find(kLetters.begin(), kLetters.end(), letter);
  require(at != kLetters.end(), "'", letter, "' is no kernel of a convolution: expected a, o or p");
  return static_cast<ConvolutionKernel>(at - kLetters.begin());
}

PassKernels kernels_from(const std::string& text) {
  require(text.size() == 3, "'", text, "' are no kernels of a convolution: expected three letters");
  return {kernel_of(text[0]), kernel_of(text[1]), kernel_of(text[2])};
}

/// The numbers between the separators of to_text(shape).
std::array<std::int64_t, 10> numbers_in(const std::string& text) {
  constexpr std::array kBehind{'>', '@', 'x', 'k', 'x', 's', 'x', 'p', 'x', '\0'};
  std::array<std::int64_t, 10> numbers{};
  const char* next = text.c_str();
  const char* const end = next + text.size();
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const auto [stop, error] = std::from_chars(next, end, numbers[i]);
    require(error == std::errc() && *stop == kBehind[i], "'", text,
            "' is no shape of a convolution; expected one as '64>256@16x16k1x1s1x1p0x0'");
    next = stop + 1;
  }
  return numbers;
}

void count(const PassKernels& kernels, std::array<int, 3>& passes) {
  for (const ConvolutionKernel kernel : {kernels.forward, kernels.of_input, kernels.of_weight})
    ++passes[static_cast<std::size_t>(kernel)];
}

}  // namespace

const PassKernels& ConvolutionChoice::of(const ConvolutionShape& shape) const {
  const auto row = kernels.find(shape);
  return row == kernels.end() ? otherwise : row->second;
}

bool ConvolutionChoice::is_atens() const {
  return !channels_last && otherwise == PassKernels{} &&
         std::ranges::all_of(kernels, [](const auto& row) { return row.second == PassKernels{}; });
}

ConvolutionChoice ConvolutionChoice::onednn() {
  return {.otherwise = PassKernels::all(ConvolutionKernel::kOnednn)};
}

ConvolutionChoice ConvolutionChoice::product() {
  return {.channels_last = true, .otherwise = PassKernels::all(ConvolutionKernel::kProduct)};
}

std::string to_text(const ConvolutionShape& shape) {
  const auto pair = [](const std::array<std::int64_t, 2>& both) { return text(both[0], "x", both[1]); };
  return text(shape.in, ">", shape.out, "@", shape.height, "x", shape.width, "k", pair(shape.kernel), "s",
              pair(shape.stride), "p", pair(shape.padding));
}

ConvolutionShape convolution_shape_from(const std::string& text) {
  const auto n = numbers_in(text);
  return {.in = n[0],
          .out = n[1],
          .height = n[2],
          .width = n[3],
          .kernel = {n[4], n[5]},
          .stride = {n[6], n[7]},
          .padding = {n[8], n[9]}};
}

std::string to_text(const ConvolutionChoice& choice) {
  std::string all = text(choice.channels_last ? "nhwc " : "nchw ", letters(choice.otherwise));
  for (const auto& [shape, kernels] : choice.kernels) all += text(" ", to_text(shape), ":", letters(kernels));
  return all;
}

ConvolutionChoice convolution_choice_from(const std::string& written) {
  std::istringstream in(written);
  std::string format, otherwise, row;
  in >> format >> otherwise;
  require(format == "nhwc" || format == "nchw", "'", written,
          "' is no choice of kernels for convolutions: it begins neither with nchw nor with nhwc");
  ConvolutionChoice choice{.channels_last = format == "nhwc", .otherwise = kernels_from(otherwise)};
  while (in >> row) {
    const std::size_t colon = std::min(row.find(':'), row.size());
    require(colon < row.size(), "'", row, "' in a choice of kernels has no ':'");
    choice.kernels.emplace(convolution_shape_from(row.substr(0, colon)), kernels_from(row.substr(colon + 1)));
  }
  require(to_text(choice) == written, "'", written,
          "' is no choice of kernels for convolutions: it reads as '", to_text(choice), "'");
  return choice;
}

std::string describe(const ConvolutionChoice& choice) {
  if (choice.is_atens()) return "ATen's kernels";
  std::array<int, 3> passes{};
  for (const auto& [shape, kernels] : choice.kernels) count(kernels, passes);
  if (choice.kernels.empty()) count(choice.otherwise, passes);
  const auto [atens, onednns, products] = passes;
  return text(choice.channels_last ? "channels_last" : "contiguous", "; of ", atens + onednns + products,
              " passes ", products, " as one product, ", onednns, " by oneDNN, ", atens, " by ATen");
}

}  // namespace trireme::model
