#pragma once
// What encoding and decoding the values of a chunk cost one core.

#include <string>

#include "bench/spread.h"
#include "trireme/base/clock.h"
#include "trireme/base/random.h"
#include "trireme/compress/codec.h"

namespace trireme::bench {

template <class Work>
nlohmann::json rate_of(double gigabytes, const Work& work) {
  std::vector<double> rates;
  for (int i = 0; i < 101; ++i) {
    const double begin_s = now_s();
    work();
    rates.push_back(gigabytes / (now_s() - begin_s));
  }
  return spread(rates);
}

/// Of a chunk as large as they get, in the cache of one core.
inline nlohmann::json cost_of(const std::string& name, const compress::Codec& codec) {
  Random random(1);
  std::vector<float> values(256 << 10), pending(values.size()), sum(values.size());
  for (float& value : values) value = (random.uniform() - 0.5F) * (random.uniform() - 0.5F);
  const double gigabytes = 1e-9 * static_cast<double>(values.size() * sizeof(float));
  compress::Codec::Options options;
  std::vector<std::byte> room(codec.most_bytes(values.size(), options));
  std::span<const std::byte> encoded;
  const auto encode_all = [&](std::span<const float> from) {
    encoded = std::span(room).first(codec.encode(from, options, room));
  };
  const auto encode = [&] {
    ++options.seed;
    if (!codec.leaves_out()) {
      encode_all(values);
      return;
    }
    std::ranges::transform(pending, values, pending.begin(), std::plus<>());
    encode_all(pending);
    codec.take_out(encoded, pending);
  };
  nlohmann::json cost = {{"codec", name}, {"encode_gb_per_s", rate_of(gigabytes, encode)}};
  cost["share_of_bytes"] = 1e-9 * static_cast<double>(encoded.size()) / gigabytes;
  cost["decode_gb_per_s"] = rate_of(gigabytes, [&] { codec.decode(encoded, sum); });
  cost["add_gb_per_s"] = rate_of(gigabytes, [&] { codec.add(encoded, sum); });
  return cost;
}

}  // namespace trireme::bench
