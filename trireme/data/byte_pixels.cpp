#include "trireme/data/byte_pixels.h"

#include "trireme/base/error.h"

namespace trireme::data {

BytePixels::BytePixels(const Normalisation& normalisation)
    : scale_(static_cast<float>(1 / (255 * normalisation.std))),
      shift_(static_cast<float>(-normalisation.mean / normalisation.std)) {
  require(normalisation.std > 0, "the standard deviation to normalise with must be positive, not ",
          normalisation.std);
}

void BytePixels::convert(std::span<const std::uint8_t> bytes, float* target) const {
  for (std::size_t i = 0; i < bytes.size(); ++i) target[i] = static_cast<float>(bytes[i]) * scale_ + shift_;
}

}  // namespace trireme::data
