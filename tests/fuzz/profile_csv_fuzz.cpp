// A model's profile as text, and a plan from the parsed profile.
#include "tests/fuzz/reading.h"
#include "trireme/plan/profile.h"

using namespace trireme;

extern "C" int fuzz_profile_csv(const std::uint8_t* data, std::size_t size) {
  fuzz::is_read([&] {
    const plan::Profile profile = plan::parse_profile(fuzz::text_in(data, size));
    const std::string written = plan::to_csv(profile);
    if (plan::to_csv(plan::parse_profile(written)) != written) __builtin_trap();
    for (std::size_t cut = 0; cut <= profile.last_cut(); ++cut) profile.output_bytes(cut);
    profile.between(0, profile.last_cut());
  });
  return 0;
}
