#include "trireme/model/convolution_choice.h"

#include <algorithm>
#include <sstream>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/base/text.h"

namespace trireme::model {
namespace {

constexpr std::array<std::int64_t, ConvolutionChoice::kNumPlanes + 1> kFirstPixels{2, 5, 17, 64};

/// -1: of another size.
int plane_of(std::int64_t pixels) {
  const auto next = std::upper_bound(kFirstPixels.begin(), kFirstPixels.end(), pixels);
  return next == kFirstPixels.end() ? -1 : static_cast<int>(next - kFirstPixels.begin()) - 1;
}

}  // namespace

bool ConvolutionChoice::takes_onednn(const ConvolutionShape& shape) const {
  const bool atens_own_kernel = shape.threads == 1 && shape.batch < kAtenEnds && shape.kernel_height == 1 &&
                                shape.kernel_width == 1 && shape.stride == 1;
  const int plane = plane_of(shape.height * shape.width);
  if (!atens_own_kernel || shape.groups != 1 || plane < 0) return false;
  return shape.batch >= least_batch[static_cast<std::size_t>(plane)][shape.out > shape.in ? 1 : 0];
}

ConvolutionChoice ConvolutionChoice::onednn() { return {.least_batch = {{{1, 1}, {1, 1}, {1, 1}}}}; }

std::string to_text(const ConvolutionChoice& choice) {
  std::vector<std::string> words;
  for (const auto& of_plane : choice.least_batch) {
    for (const std::int64_t least : of_plane) words.push_back(text(least));
  }
  return join(words, " ");
}

ConvolutionChoice convolution_choice_from(const std::string& written) {
  ConvolutionChoice choice;
  std::istringstream in(written);
  for (auto& of_plane : choice.least_batch) {
    for (std::int64_t& least : of_plane) {
      in >> least;
      if (least < 1 || least > ConvolutionChoice::kAtenEnds) in.setstate(std::ios::failbit);
    }
  }
  require(in && to_text(choice) == written, "'", written,
          "' is no choice of kernels for convolutions: ", "expected six whole numbers from 1 to ",
          ConvolutionChoice::kAtenEnds);
  return choice;
}

std::string describe(const ConvolutionChoice& choice) {
  if (choice.is_atens()) return "ATen's kernels";
  static constexpr std::array<const char*, ConvolutionChoice::kNumPlanes> kPlanes{"2x2", "4x4", "7x7"};
  static constexpr std::array<const char*, 2> kWays{"to fewer or as many channels", "to more channels"};
  std::vector<std::string> parts;
  for (std::size_t plane = 0; plane < kPlanes.size(); ++plane) {
    for (std::size_t way = 0; way < kWays.size(); ++way) {
      const std::int64_t least = choice.least_batch[plane][way];
      if (least < ConvolutionChoice::kAtenEnds)
        parts.push_back(
            text(kPlanes[plane], " from ", least, least == 1 ? " sample " : " samples ", kWays[way]));
    }
  }
  return text("oneDNN for planes of up to ", join(parts), "; else ATen's kernels");
}

}  // namespace trireme::model
