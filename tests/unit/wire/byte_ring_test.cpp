// A ring in shared memory: every order of its doorbell, a long run, and an end that writes false values.

#include "trireme/wire/internal/byte_ring.h"

#include <gmock/gmock.h>

#include <array>
#include <atomic>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "trireme/wire/futex.h"

namespace trireme::wire {
namespace {

// A model of the doorbell. Each end runs in steps of one access to shared memory, and all orders of the steps
// are tried. A writer puts kItems items, one by one. A reader takes them and sleeps if there are none. A
// wake-up is lost if the reader sleeps forever while there are items.
struct Model {
  int written = 0, read = 0, sleeps = 0, bells = 0;
  int writer_step = 0, reader_step = 0, writer_took = 0;
  auto operator<=>(const Model&) const = default;
};

enum class Doorbell { kAsItIs, kWithoutLookingAgain, kAsksBeforeItWrites };
constexpr int kItems = 3;

/// One step of the writer. Returns false if there is none.
bool write_step(Model& m, Doorbell form) {
  const bool asks_first = form == Doorbell::kAsksBeforeItWrites;
  if (m.writer_step == 0 && m.written == kItems) return false;
  switch (m.writer_step) {
    case 0:  // sets its position, or (wrongly) reads the word first
      asks_first ? void(m.writer_took = m.sleeps) : void(++m.written);
      break;
    case 1:
      asks_first ? void(++m.written) : void(m.writer_took = m.sleeps);
      break;
    case 2:  // exchange
      if (m.writer_took != 0) m.writer_took = std::exchange(m.sleeps, 0);
      break;
    default:
      if (m.writer_took != 0) ++m.bells;
      m.writer_took = 0;
  }
  m.writer_step = (m.writer_step + 1) % 4;
  return true;
}

bool read_step(Model& m, Doorbell form) {
  switch (m.reader_step) {
    case 0:  // takes the available items, or prepares to sleep
      if (m.read == kItems) return false;
      if (m.read < m.written) {
        ++m.read;
      } else {
        m.reader_step = 1;
      }
      return true;
    case 1:
      m.sleeps = 1;
      m.reader_step = form == Doorbell::kWithoutLookingAgain ? 4 : 2;
      return true;
    case 2:  // checks again
      m.reader_step = m.read < m.written ? 3 : 4;
      return true;
    case 3:
      m.sleeps = 0;
      m.reader_step = 0;
      return true;
    default:  // asleep
      if (m.bells == 0) return false;
      m.bells = 0;
      m.reader_step = 0;
      return true;
  }
}

/// Whether some order of steps loses a wake-up.
bool can_lose(Doorbell form) {
  std::set<Model> seen;
  std::vector<Model> open = {Model{}};
  while (!open.empty()) {
    const Model model = open.back();
    open.pop_back();
    if (!seen.insert(model).second) continue;
    Model after_write = model, after_read = model;
    const bool writer_goes_on = write_step(after_write, form);
    const bool reader_goes_on = read_step(after_read, form);
    if (writer_goes_on) open.push_back(after_write);
    if (reader_goes_on) open.push_back(after_read);
    if (!writer_goes_on && !reader_goes_on && model.read < kItems) return true;
  }
  EXPECT_GT(seen.size(), 100u);
  return false;
}

TEST(ByteRing, NoOrderOfStepsLosesWakeUp) {
  EXPECT_FALSE(can_lose(Doorbell::kAsItIs));
  // The model detects the faults of wrong forms.
  EXPECT_TRUE(can_lose(Doorbell::kWithoutLookingAgain));
  EXPECT_TRUE(can_lose(Doorbell::kAsksBeforeItWrites));
}

struct Ring {
  alignas(64) RingControl control{};
  std::vector<std::byte> bytes;
  explicit Ring(std::size_t size) : bytes(size) {}
  RingPlace place() { return {.control = &control, .bytes = bytes}; }
};

iovec part_of(void* at, std::size_t bytes) { return {at, bytes}; }

TEST(ByteRing, NumbersArriveInOrderThroughManySleeps) {
  // A small ring, so that both ends sleep all the time. Each has a bell instead of the socket.
  constexpr std::uint64_t kNumbers = 2'000'000;
  Ring ring(256);
  std::atomic<std::uint32_t> reader_bell{0}, writer_bell{0};
  const auto sleep_on = [](std::atomic<std::uint32_t>& bell) {
    while (bell.load() == 0) futex_wait(bell, 0, 20);
    bell.store(0);
  };
  const auto ring_it = [](std::atomic<std::uint32_t>& bell) {
    bell.store(1);
    futex_wake_all(bell);
  };
  std::thread producer([&] {
    RingWriter writer(ring.place());
    std::array<std::uint64_t, 24> numbers;
    std::uint64_t next = 0;
    while (next < kNumbers) {
      const std::size_t many = std::min<std::uint64_t>(1 + next % numbers.size(), kNumbers - next);
      for (std::size_t i = 0; i < many; ++i) numbers[i] = next + i;
      for (std::size_t sent = 0; sent < 8 * many;) {
        const iovec part = part_of(reinterpret_cast<std::byte*>(numbers.data()) + sent, 8 * many - sent);
        const std::size_t count = writer.write({&part, 1}, 1 << 20);
        sent += count;
        if (count > 0 && writer.take_wake()) ring_it(reader_bell);
        if (count == 0 && !writer.arm()) sleep_on(writer_bell);
      }
      next += many;
    }
  });
  RingReader reader(ring.place());
  std::uint64_t expected = 0, number = 0;
  std::size_t got = 0;
  while (expected < kNumbers) {
    const iovec part = part_of(reinterpret_cast<std::byte*>(&number) + got, 8 - got);
    const std::size_t count = reader.read({&part, 1});
    got += count;
    if (count > 0 && reader.take_wake()) ring_it(writer_bell);
    if (count == 0 && !reader.arm()) sleep_on(reader_bell);
    if (got < 8) continue;
    ASSERT_EQ(number, expected++);
    got = 0;
  }
  producer.join();
}

TEST(ByteRing, RejectsImpossiblePosition) {
  std::array<std::byte, 512> bytes{};
  const iovec part = part_of(bytes.data(), bytes.size());
  for (const std::uint64_t lie : {std::uint64_t{257}, ~std::uint64_t{0}, std::uint64_t{1} << 63}) {
    Ring ring(256);
    RingReader reader(ring.place());
    ring.control.written = lie;
    EXPECT_EQ(reader.read({&part, 1}), 0u);
    EXPECT_TRUE(reader.broken());
    RingWriter writer(ring.place());
    ring.control.read = lie;
    EXPECT_EQ(writer.write({&part, 1}, 1 << 20), 0u);
    EXPECT_TRUE(writer.broken());
  }
}

TEST(ByteRing, RejectsPositionThatGoesBack) {
  std::array<std::byte, 100> bytes{};
  const iovec part = part_of(bytes.data(), bytes.size());
  Ring ring(256);
  RingWriter writer(ring.place());
  RingReader reader(ring.place());
  ASSERT_EQ(writer.write({&part, 1}, 1 << 20), 100u);
  ASSERT_EQ(reader.read({&part, 1}), 100u);
  ASSERT_EQ(writer.write({&part, 1}, 1 << 20), 100u);
  ring.control.written = 50;
  EXPECT_EQ(reader.read({&part, 1}), 0u);
  EXPECT_TRUE(reader.broken());
  ring.control.read = 99;
  EXPECT_EQ(writer.write({&part, 1}, 1 << 20), 0u);
  EXPECT_TRUE(writer.broken());
}

}  // namespace
}  // namespace trireme::wire
