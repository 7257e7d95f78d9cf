// A recommender over a parameter server. A sparse table has a row for each user and item, and grows with new
// keys. Workers pull the rows of a batch and push gradients. Clicks are generated, so the best AUC is known.
//   trireme launch -n 2 --servers 2 -- example_ps_embeddings [STEPS]        docs/parameter-server.md

#include <algorithm>
#include <cmath>
#include <iostream>
#include <numeric>

#include "trireme/base/random.h"
#include "trireme/base/run_main.h"
#include "trireme/ps/client.h"

using namespace trireme;
constexpr std::size_t kUsers = 400, kItems = 300, kDim = 8, kBatch = 256;

struct Click {
  std::uint64_t user, item;
  float probability;
  bool clicked;
};

float logistic(float score) { return 1 / (1 + std::exp(-score)); }
/// Users and items have 4 hidden numbers each. Every worker has its own samples.
Click click(std::uint64_t worker, std::uint64_t step, std::uint64_t i) {
  Random random(7, worker, step, i);
  const std::uint64_t user = random.below(kUsers), item = random.below(kItems);
  Random likes(8, user), is(9, item);
  float score = 0;
  for (int k = 0; k < 4; ++k) score += (3 * likes.uniform() - 1.5F) * (3 * is.uniform() - 1.5F);
  return {user, item, logistic(score), random.uniform() < logistic(score)};
}

/// The probability that a click has a higher score than a sample without one.
double auc(const std::vector<Click>& clicks, const std::vector<float>& scores) {
  std::vector<std::size_t> order;
  while (order.size() < clicks.size()) order.push_back(order.size());
  std::sort(order.begin(), order.end(), [&](auto a, auto b) { return scores[a] < scores[b]; });
  double below = 0, without = 0;
  for (const std::size_t i : order) clicks[i].clicked ? below += without : without += 1;
  return below / (without * (static_cast<double>(clicks.size()) - without));
}

int main(int argc, char** argv) {
  return run_main([&] {
    const std::uint64_t num_steps = argc > 1 ? std::stoull(argv[1]) : 400;
    const auto client = ps::Client::from_environment();
    const ps::TableId table = client->open_table({.name = "embeddings",
                                                  .kind = ps::TableKind::kSparse,
                                                  .rows = {.elements = kDim},
                                                  .staleness = 2,
                                                  .optimizer = {.name = "rowwise_adagrad", .lr = 0.1},
                                                  .initial_range = 0.3F});
    std::vector<float> rows, gradients, scores, best;
    const auto pull_and_score = [&](const std::vector<Click>& clicks) {
      std::vector<std::uint64_t> keys;  // users are even, items odd
      for (const Click& each : clicks) keys.insert(keys.end(), {2 * each.user, 2 * each.item + 1});
      rows.resize(keys.size() * kDim);
      client->pull_rows(table, keys, rows).get();
      scores.clear();
      for (const float* row = rows.data(); row != rows.data() + rows.size(); row += 2 * kDim)
        scores.push_back(std::inner_product(row, row + kDim, row + kDim, 0.0F));
      return keys;
    };
    std::vector<Click> batch(kBatch), test;
    for (std::uint64_t step = 0; step < num_steps; ++step) {
      for (std::size_t i = 0; i < kBatch; ++i) batch[i] = click(client->life().worker, step, i);
      const std::vector<std::uint64_t> keys = pull_and_score(batch);
      gradients.resize(rows.size());
      for (std::size_t i = 0; i < rows.size(); ++i) {
        const std::size_t of = i / (2 * kDim), other = i % (2 * kDim) < kDim ? i + kDim : i - kDim;
        gradients[i] = (logistic(scores[of]) - (batch[of].clicked ? 1.0F : 0.0F)) * rows[other];
      }
      client->push_rows(table, keys, gradients);
      client->tick();
    }
    while (test.size() < 20000) test.push_back(click(/*worker=*/1000, 0, test.size()));
    pull_and_score(test);
    for (const Click& each : test) best.push_back(each.probability);
    std::cout << "AUC " << auc(test, scores) << "; the best is " << auc(test, best) << std::endl;
    client->leave().get();
  });
}
