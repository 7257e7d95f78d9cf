// The evidence files in the folder of a failed run, and the verdict derived from them.
#include "tests/fuzz/reading.h"
#include "trireme/autopsy/evidence_file.h"
#include "trireme/autopsy/verdict.h"

using namespace trireme;

extern "C" int fuzz_autopsy(const std::uint8_t* data, std::size_t size) {
  fuzz::is_read([&] {
    const autopsy::Evidence evidence = autopsy::decode(fuzz::text_in(data, size));
    const autopsy::Verdict verdict = autopsy::judge(evidence);
    autopsy::paragraph(verdict);
    autopsy::to_json(verdict, evidence);
  });
  return 0;
}
