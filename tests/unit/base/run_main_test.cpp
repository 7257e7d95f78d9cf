#include "trireme/base/run_main.h"

#include <gmock/gmock.h>

#include <new>

#include "trireme/base/error.h"

namespace trireme {
namespace {

using testing::HasSubstr;

struct Ended {
  int exit_code = 0;
  std::string said;
};

template <class Body>
Ended run(Body body) {
  testing::internal::CaptureStderr();
  const int code = run_main(body);
  return {code, testing::internal::GetCapturedStderr()};
}

TEST(RunMain, ReturnsResultOfBodyOrZero) {
  EXPECT_EQ(run_main([] {}), 0);
  EXPECT_EQ(run_main([] { return 7; }), 7);
}

TEST(RunMain, OurErrorIsLineAndExitCode) {
  const Ended ended = run([] { throw DataError("cannot read x"); });
  EXPECT_EQ(ended.exit_code, kExitData);
  EXPECT_EQ(ended.said, "unit_base: error: cannot read x\n");
}

TEST(RunMain, ForeignExceptionIsLineWithoutFrames) {
  const Ended ended = run([] {
    throw std::runtime_error(
        "size 3 must match 4\nException raised from infer_size at X.cpp:24\nframe #0: f");
  });
  EXPECT_EQ(ended.exit_code, kExitInternal);
  EXPECT_EQ(ended.said, "unit_base: error: size 3 must match 4\n");
}

TEST(RunMain, NonStandardExceptionDoesNotAbort) {
  const Ended ended = run([]() -> int { throw 5; });
  EXPECT_EQ(ended.exit_code, kExitInternal);
  EXPECT_THAT(ended.said, HasSubstr("no std::exception"));
}

TEST(RunMain, ReportsOutOfMemoryHoweverThrown) {
  EXPECT_THAT(run([] { throw std::bad_alloc(); }).said, HasSubstr("error: out of memory"));
  EXPECT_THAT(run([] { throw std::runtime_error("can't allocate memory: you tried 64 bytes. x"); }).said,
              HasSubstr("error: out of memory: you tried 64 bytes; make"));
}

}  // namespace
}  // namespace trireme
