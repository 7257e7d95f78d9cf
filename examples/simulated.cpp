// Training on a simulation that runs concurrently (online data generation). Threads simulate damped
// pendulums, and a model learns their state a second later. No sample is stored or repeated. The faster side
// waits for the other.
//
//   example_simulated train simulated.toml -n 2 --set pendulum.threads=2
//   example_simulated verify simulated.toml -n 2 --set parallel.pipeline=2
//
// A sample is a function of seed, epoch and place (.keyed). So any number of ranks and threads gets the same
// samples, also after a resume.
#include <cmath>

#include "trireme/app/run_app.h"
#include "trireme/base/random.h"
#include "trireme/data/producer.h"

using namespace trireme;

/// `start`: angle, speed, damping; `end`: angle and speed after a second.
void swing(Random random, const at::Tensor& start, const at::Tensor& end) {
  double angle = 4 * random.uniform() - 2, speed = 4 * random.uniform() - 2;
  const double damping = random.uniform();
  auto* from = start.data_ptr<float>();
  from[0] = static_cast<float>(angle), from[1] = static_cast<float>(speed);
  from[2] = static_cast<float>(damping);
  for (int step = 0; step < 1000; ++step) {
    speed -= 1e-3 * (9.81 * std::sin(angle) + damping * speed);
    angle += 1e-3 * speed;
  }
  auto* to = end.data_ptr<float>();
  to[0] = static_cast<float>(angle), to[1] = static_cast<float>(speed);
}

/// The samples of the test.
struct Swings : data::Dataset {
  std::int64_t size() const override { return 1000; }
  data::Example get(std::int64_t index) const override {
    const data::Example swung = {at::empty({3}), at::empty({2})};
    swing(Random(0, Random::key_of("test"), index), swung.input, swung.target);
    return swung;
  }
};

struct Pendulum {  // the table [pendulum]
  std::int64_t threads = 1, samples = 10'000;
};

data::DataSource open_pendulum(const Pendulum& pendulum, const train::DataTask& task) {
  const auto seed = static_cast<std::uint64_t>(task.config.run.seed);
  const auto produce = [seed](data::Producer& producer) {
    const auto next = [seed](data::Row& row) {
      swing(Random(seed, row.epoch, row.place), row.sample.input, row.sample.target);
    };
    while (producer.fill(next)) {
    }
  };
  data::DataSource source = {.name = "pendulum", .train = nullptr, .test = std::make_shared<Swings>()};
  source.train = std::make_shared<data::ProducedSamples>(
      data::ProducedOptions{.name = "pendulum",
                            .like = {at::zeros({3}), at::zeros({2})},
                            .samples_per_epoch = pendulum.samples,
                            .keyed = true,
                            .threads = static_cast<int>(pendulum.threads),
                            .produce = produce});
  source.input_shape = {3};
  return source;
}

int main(int argc, char** argv) {
  const train::Keys<Pendulum> keys = {
      {"threads", &Pendulum::threads, "that simulate", {.least = 1}, train::OnResume::kMayChange},
      {"samples", &Pendulum::samples, "of an epoch", {.least = 1}}};
  return run_app(argc, argv, {.datasets = {{"pendulum", keys, open_pendulum}}});
}
