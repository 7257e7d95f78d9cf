// A step program as text. A parsed program is validated, counted and written again.
#include "tests/fuzz/reading.h"
#include "trireme/schedule/validate.h"

using namespace trireme;

extern "C" int fuzz_program_csv(const std::uint8_t* data, std::size_t size) {
  schedule::Program program;
  if (!fuzz::is_read([&] { program = schedule::parse_csv(fuzz::text_in(data, size)); })) return 0;
  const std::string written = schedule::to_csv(program);
  if (schedule::to_csv(schedule::parse_csv(written)) != written) __builtin_trap();
  const schedule::Form form = schedule::form_of(program);
  for (const schedule::Transport transport :
       {schedule::Transport::kBuffered, schedule::Transport::kRendezvous})
    fuzz::is_read([&] { schedule::validate(program, {.form = form, .transport = transport}); });
  return 0;
}
