// Ten kinds of libtorch programs, each with the lines that make it parallel. Two ranks have the losses of
// one.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <mutex>

#include "tests/unit/parallel/small_models.h"
#include "trireme/comm/context.h"
#include "trireme/optim/tensors_of.h"
#include "trireme/parallel/data/distributed_data_parallel.h"
#include "trireme/parallel/data/sync_batch_norm.h"
#include "trireme/parallel/pipeline/pipe.h"
#include "trireme/parallel/zero/fully_shard.h"

namespace trireme::parallel {
namespace {

namespace nn = torch::nn;
namespace F = torch::nn::functional;
using comm::Context;
using test::numbers_f64;

constexpr int kPortedSteps = 3;
constexpr std::int64_t kPortedBatch = 8;
using Losses = std::vector<double>;

at::Tensor part_of(const Context& context, const at::Tensor& all) {
  return all.chunk(context.world_size())[static_cast<std::size_t>(context.rank())];
}

double mean_of_ranks(Context& context, const at::Tensor& loss) {
  at::Tensor mean = loss.detach().clone();
  context.world().all_reduce(mean, comm::ReduceOp::kAverage);
  return mean.item<double>();
}

/// The result of `body` on rank 0.
Losses losses_on(int ranks, const std::function<Losses(Context&)>& body) {
  Losses losses;
  std::mutex mutex;
  comm::run_ranks_as_threads(ranks, [&](Context& context) {
    const Losses mine = body(context);
    const std::lock_guard lock(mutex);
    if (context.rank() == 0) losses = mine;
  });
  return losses;
}

void expect_equal_losses(const std::function<Losses(Context&)>& body) {
  const Losses one = losses_on(1, body), two = losses_on(2, body);
  ASSERT_EQ(one.size(), static_cast<std::size_t>(kPortedSteps));
  EXPECT_NE(one.front(), one.back()) << "it does not learn";
  for (std::size_t step = 0; step < one.size(); ++step)
    EXPECT_NEAR(two[step], one[step], 1e-12 * std::abs(one[step])) << "step " << step;
}

template <class Module>
std::shared_ptr<Module> in_f64(std::shared_ptr<Module> module) {
  test::fill_parameters(*module);
  module->to(at::kDouble);
  return module;
}

at::Tensor classes(int step, std::int64_t number = 3) {
  return at::arange(kPortedBatch, at::kLong).mul(7).add(step).remainder(number);
}

/// The loop of most programs: a module, SGD, and a loss of this rank's part of the batch.
template <class Make, class Loss>
void expect_equal_training(const Make& make, const Loss& loss_of, const DataParallelOptions& options = {}) {
  expect_equal_losses([&](Context& context) {
    auto module = in_f64(make());
    DistributedDataParallel ddp(context, module, options);  // (+)
    torch::optim::SGD optimizer(module->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
    Losses losses;
    for (int step = 0; step < kPortedSteps; ++step) {
      optimizer.zero_grad();
      const at::Tensor loss = loss_of(
          *module, [&](const at::Tensor& all) { return part_of(context, all); }, step);  // (+)
      loss.backward();
      optimizer.step();
      losses.push_back(mean_of_ranks(context, loss));  // (+)
    }
    return losses;
  });
}

struct MnistNet : nn::Module {
  nn::Conv2d conv = register_module("conv", nn::Conv2d(1, 4, 3));
  nn::Linear full = register_module("full", nn::Linear(4 * 9, 3));
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor h = at::relu(at::max_pool2d(conv(x), 2));
    return at::log_softmax(full(h.flatten(1)), 1);
  }
};

TEST(PortedProgram, OfMnistDigits) {
  expect_equal_training([] { return std::make_shared<MnistNet>(); },
                        [](MnistNet& net, const auto& mine, int step) {
                          return at::nll_loss(net.forward(mine(numbers_f64({kPortedBatch, 1, 8, 8}, step))),
                                              mine(classes(step)));
                        });
}

TEST(PortedProgram, OfDcgan) {
  expect_equal_losses([](Context& context) {
    nn::Sequential generator(
        nn::ConvTranspose2d(nn::ConvTranspose2dOptions(4, 6, 3).bias(false)), nn::BatchNorm2d(6), nn::ReLU(),
        nn::ConvTranspose2d(nn::ConvTranspose2dOptions(6, 1, 4).stride(2).padding(1)), nn::Tanh());
    nn::Sequential critic(nn::Conv2d(nn::Conv2dOptions(1, 6, 4).stride(2).padding(1)), nn::LeakyReLU(),
                          nn::Conv2d(6, 1, 3), nn::Sigmoid());
    in_f64(generator.ptr());
    in_f64(critic.ptr());
    convert_sync_batchnorm(*generator, context);                                                       // (+)
    DistributedDataParallel of_generator(context, generator.ptr()), of_critic(context, critic.ptr());  // (+)
    torch::optim::Adam learn(generator->parameters(), 0.01), judge(critic->parameters(), 0.01);
    Losses losses;
    for (int step = 0; step < kPortedSteps; ++step) {
      const at::Tensor real = part_of(context, numbers_f64({kPortedBatch, 1, 6, 6}, step));
      const at::Tensor noise = part_of(context, numbers_f64({kPortedBatch, 4, 1, 1}, step + 9));
      judge.zero_grad();
      const at::Tensor fake = generator->forward(noise);
      const at::Tensor of_real = critic->forward(real).flatten(),
                       of_fake = critic->forward(fake.detach()).flatten();
      const at::Tensor loss = at::binary_cross_entropy(of_real, at::ones_like(of_real)) +
                              at::binary_cross_entropy(of_fake, at::zeros_like(of_fake));
      loss.backward();
      judge.step();
      learn.zero_grad();
      const at::Tensor judged = critic->forward(fake).flatten();
      const at::Tensor fooled = at::binary_cross_entropy(judged, at::ones_like(judged));
      fooled.backward();
      learn.step();
      losses.push_back(mean_of_ranks(context, loss + fooled));
    }
    return losses;
  });
}

nn::Sequential alex_net() {
  nn::Sequential net(nn::Conv2d(nn::Conv2dOptions(3, 6, 3).padding(1)), nn::ReLU(), nn::MaxPool2d(2),
                     nn::Conv2d(6, 8, 3), nn::ReLU(), nn::AdaptiveAvgPool2d(2), nn::Flatten(),
                     nn::Dropout(0.0), nn::Linear(32, 12), nn::ReLU(), nn::Linear(12, 3));
  in_f64(net.ptr());
  return net;
}

at::Tensor of_classes(const at::Tensor& output, const at::Tensor& target) {
  return F::cross_entropy(output, target);
}

TEST(PortedProgram, AlexNetRunsWithReplicasShardsStages) {
  const auto images = [](int step) { return numbers_f64({kPortedBatch, 3, 8, 8}, step); };
  const auto in_replicas = [&](Context& context) {
    nn::Sequential net = alex_net();
    DistributedDataParallel ddp(context, net.ptr());
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    Losses losses;
    for (int step = 0; step < kPortedSteps; ++step) {
      optimizer.zero_grad();
      const at::Tensor loss =
          of_classes(net->forward(part_of(context, images(step))), part_of(context, classes(step)));
      loss.backward();
      optimizer.step();
      losses.push_back(mean_of_ranks(context, loss));
    }
    return losses;
  };
  expect_equal_losses(in_replicas);
  const auto in_shards = [&](Context& context) {
    FullyShardedDataParallel sharded = fully_shard(context, alex_net());        // (+)
    torch::optim::SGD optimizer(optim::tensors_of(sharded.parameters()), 0.1);  // (+)
    Losses losses;
    for (int step = 0; step < kPortedSteps; ++step) {
      sharded.zero_grad();
      const at::Tensor loss =
          of_classes(sharded.forward(part_of(context, images(step))), part_of(context, classes(step)));
      loss.backward();
      optimizer.step();
      losses.push_back(mean_of_ranks(context, loss));
    }
    return losses;
  };
  expect_equal_losses(in_shards);
  const auto in_stages = [&](Context& context) {
    Pipe pipe(context, alex_net(), {.chunks = 4});        // (+)
    torch::optim::SGD optimizer(pipe.parameters(), 0.1);  // (+)
    Losses losses;
    for (int step = 0; step < kPortedSteps; ++step) {
      optimizer.zero_grad();
      losses.push_back(pipe.step(images(step), classes(step), of_classes));  // (+)
      optimizer.step();
    }
    return losses;
  };
  expect_equal_losses(in_stages);
  const Losses replicas = losses_on(2, in_replicas), shards = losses_on(2, in_shards),
               stages = losses_on(2, in_stages);
  for (std::size_t step = 0; step < replicas.size(); ++step) {
    EXPECT_NEAR(shards[step], replicas[step], 1e-12);
    EXPECT_NEAR(stages[step], replicas[step], 1e-12);
  }
}

struct TextClassifier : nn::Module {
  nn::EmbeddingBag words = register_module("words", nn::EmbeddingBag(20, 6));
  nn::Linear classify = register_module("classify", nn::Linear(6, 3));
  at::Tensor forward(const at::Tensor& tokens) { return classify(words(tokens)); }
};

at::Tensor tokens(int step, std::int64_t length) {
  return at::arange(kPortedBatch * length, at::kLong)
      .mul(5)
      .add(step)
      .remainder(20)
      .view({kPortedBatch, length});
}

TEST(PortedProgram, OfTextClassification) {
  expect_equal_training([] { return std::make_shared<TextClassifier>(); },
                        [](TextClassifier& net, const auto& mine, int step) {
                          return F::cross_entropy(net.forward(mine(tokens(step, 5))), mine(classes(step)));
                        });
}

struct TransferNet : nn::Module {
  nn::Sequential backbone =
      register_module("backbone", nn::Sequential(nn::Linear(6, 8), nn::BatchNorm1d(8), nn::Tanh()));
  nn::Linear head = register_module("head", nn::Linear(8, 3));
  TransferNet() {
    for (auto& parameter : backbone->parameters()) parameter.set_requires_grad(false);
  }
  at::Tensor forward(const at::Tensor& x) {
    backbone->eval();
    return head(backbone->forward(x));
  }
};

TEST(PortedProgram, OfTransferLearning) {
  expect_equal_training(
      [] { return std::make_shared<TransferNet>(); },
      [](TransferNet& net, const auto& mine, int step) {
        return F::cross_entropy(net.forward(mine(numbers_f64({kPortedBatch, 6}, step))), mine(classes(step)));
      });
}

struct Vae : nn::Module {
  nn::Linear encode = register_module("encode", nn::Linear(10, 8)),
             mean = register_module("mean", nn::Linear(8, 2)),
             log_variance = register_module("log_variance", nn::Linear(8, 2)),
             decode = register_module("decode", nn::Linear(2, 10));
};

TEST(PortedProgram, OfAVariationalAutoencoder) {
  expect_equal_training(
      [] { return std::make_shared<Vae>(); },
      [](Vae& net, const auto& mine, int step) {
        const at::Tensor x = mine(numbers_f64({kPortedBatch, 10}, step).sigmoid());
        const at::Tensor noise = mine(numbers_f64({kPortedBatch, 2}, step + 5));
        const at::Tensor h = at::relu(net.encode(x)), mean = net.mean(h), log_variance = net.log_variance(h);
        const at::Tensor seen = net.decode(mean + noise * (0.5 * log_variance).exp()).sigmoid();
        const at::Tensor divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(1);
        return at::binary_cross_entropy(seen, x, {}, at::Reduction::None).sum(1).add(divergence).mean();
      });
}

struct Recurrent : nn::Module {
  nn::LSTM lstm = register_module("lstm", nn::LSTM(nn::LSTMOptions(4, 5).batch_first(true)));
  nn::Linear classify = register_module("classify", nn::Linear(5, 3));
  at::Tensor forward(const at::Tensor& x) { return classify(std::get<0>(lstm(x)).select(1, -1)); }
};

TEST(PortedProgram, OfARecurrentClassifier) {
  expect_equal_training([] { return std::make_shared<Recurrent>(); },
                        [](Recurrent& net, const auto& mine, int step) {
                          return F::cross_entropy(net.forward(mine(numbers_f64({kPortedBatch, 6, 4}, step))),
                                                  mine(classes(step)));
                        });
}

struct LanguageModel : nn::Module {
  nn::Embedding words = register_module("words", nn::Embedding(20, 6));
  nn::GRU gru = register_module("gru", nn::GRU(nn::GRUOptions(6, 6).batch_first(true)));
  at::Tensor forward(const at::Tensor& given) {  // tied weights
    return at::matmul(std::get<0>(gru(words(given))), words->weight.t());
  }
};

TEST(PortedProgram, OfALanguageModelWithClipping) {
  expect_equal_losses([](Context& context) {
    auto model = in_f64(std::make_shared<LanguageModel>());
    DistributedDataParallel ddp(context, model);
    torch::optim::AdamW optimizer(model->parameters(), 0.01);
    torch::optim::StepLR schedule(optimizer, /*step_size=*/1, /*gamma=*/0.5);
    Losses losses;
    for (int step = 0; step < kPortedSteps; ++step) {
      const at::Tensor all = part_of(context, tokens(step, 7));
      optimizer.zero_grad();
      const at::Tensor output = model->forward(all.narrow(1, 0, 6));
      const at::Tensor loss = F::cross_entropy(output.reshape({-1, 20}), all.narrow(1, 1, 6).reshape({-1}));
      loss.backward();
      nn::utils::clip_grad_norm_(model->parameters(), 0.1);
      optimizer.step();
      schedule.step();
      losses.push_back(mean_of_ranks(context, loss));
    }
    return losses;
  });
}

TEST(PortedProgram, OfOneEncoderForTwoInputs) {
  const auto make = [] { return nn::Sequential(nn::Linear(6, 8), nn::Tanh(), nn::Linear(8, 4)).ptr(); };
  expect_equal_training(make, [](nn::SequentialImpl& encoder, const auto& mine, int step) {
    const at::Tensor one = encoder.forward(mine(numbers_f64({kPortedBatch, 6}, step))),
                     other = encoder.forward(mine(numbers_f64({kPortedBatch, 6}, step + 3)));
    const at::Tensor labels = mine(classes(step, 2)).to(at::kDouble) * 2 - 1;
    return at::cosine_embedding_loss(one, other, labels);
  });
}

struct ActorCritic : nn::Module {
  nn::Linear common = register_module("common", nn::Linear(6, 8)),
             actor = register_module("actor", nn::Linear(8, 3)),
             critic = register_module("critic", nn::Linear(8, 1));
};

TEST(PortedProgram, OfTwoHeadsOfWhichOneRests) {
  expect_equal_training(
      [] { return std::make_shared<ActorCritic>(); },
      [](ActorCritic& net, const auto& mine, int step) {
        const at::Tensor h = at::tanh(net.common(mine(numbers_f64({kPortedBatch, 6}, step))));
        const at::Tensor chosen = mine(classes(step)), gain = mine(numbers_f64({kPortedBatch}, step + 1));
        const at::Tensor policy =
            -(at::log_softmax(net.actor(h), 1).gather(1, chosen.unsqueeze(1)).squeeze(1) * gain).mean();
        return step % 2 == 1 ? policy : policy + at::mse_loss(net.critic(h).squeeze(1), gain);
      },
      {.unused_parameters = UnusedParameters::kFind});
}

}  // namespace
}  // namespace trireme::parallel
