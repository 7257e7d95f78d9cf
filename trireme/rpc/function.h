#pragma once
// Functions that other workers may call, typed where they are written:
//
//   at::Tensor forward(const at::Tensor& x, double scale);
//   inline constexpr auto& kForward = rpc::function<"forward", &forward>;
//
//   struct Shard { at::Tensor forward(const at::Tensor& x); };
//   agent->rpc_sync("w1", rpc::function<"Shard.forward", &Shard::forward>, shard, x);   // shard: RRef<Shard>
//
// Naming one in a program is all it takes to have it served there. Arguments and results are numbers, enums
// that end with kLast, strings, vectors, maps, optionals, pairs, tuples, structs that list their fields
// (wire/fields.h), RRefs, what has a wire::Field, such as tensors (remote/tensor_field.h); arguments are
// taken by value or const reference. A member function takes the RRef of its object first and runs where that
// is. A result may be a Future, which is waited for without a thread; a shared_ptr stays where it is, and the
// caller gets an RRef to what it points to (Agent::remote).

#include <algorithm>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include "trireme/rpc/reference.h"
#include "trireme/rpc/served_call.h"

namespace trireme::rpc {

template <std::size_t N>
struct FunctionName {
  char text[N]{};
  consteval FunctionName(const char (&name)[N]) { std::copy_n(name, N, text); }  // NOLINT: from a literal
};

/// What `function<"name", &f>` is, by the signature that callers see.
template <class Signature>
class Function;

/// What callers see of it.
template <class R, class... Args>
class Function<R(Args...)> {
 public:
  using Result = R;
  explicit Function(const FunctionRow& row) : row_(row) {}
  const FunctionRow& row() const { return row_; }

 private:
  const FunctionRow& row_;
};

/// What can go to another worker.
template <class T>
concept Sendable = requires(wire::FieldWriter& writer, const T& value) {
  writer.write(value);
};

namespace internal {

template <class R>
struct ResultOf {
  using Type = R;
  static constexpr bool kIsFuture = false;
};
template <class R>
struct ResultOf<Future<R>> {
  using Type = R;
  static constexpr bool kIsFuture = true;
};
/// What the reference to a result refers to.
template <class R>
struct KeptAs {
  using Type = Stored<R>;
};
template <class T>
struct KeptAs<std::shared_ptr<T>> {
  using Type = T;
};

template <class Body>
struct BodyTraits;
template <class R, class... Args>
struct BodyTraits<R (*)(Args...)> {
  static_assert(((!std::is_lvalue_reference_v<Args> || std::is_const_v<std::remove_reference_t<Args>>)&&...),
                "arguments of remote functions are taken by value or const reference");
  using Result = typename ResultOf<std::decay_t<R>>::Type;
  using Signature = Result(std::decay_t<Args>...);
  using Arguments = std::tuple<std::decay_t<Args>...>;
  template <auto body>
  static R apply(Arguments& arguments) {
    return std::apply([](auto&... each) { return body(std::move(each)...); }, arguments);
  }
};
template <class C, class R, class... Args>
struct MethodTraits {
  using Result = typename ResultOf<std::decay_t<R>>::Type;
  using Signature = Result(RRef<C>, std::decay_t<Args>...);
  using Arguments = std::tuple<RRef<C>, std::decay_t<Args>...>;
  template <auto body>
  static std::decay_t<R> apply(Arguments& arguments) {
    return std::apply(
        [](RRef<C>& object, auto&... each) -> std::decay_t<R> {
          const std::shared_ptr<C> held = object.local_value();
          return ((*held).*body)(std::move(each)...);
        },
        arguments);
  }
};
template <class C, class R, class... Args>
struct BodyTraits<R (C::*)(Args...)> : MethodTraits<C, R, Args...> {};
template <class C, class R, class... Args>
struct BodyTraits<R (C::*)(Args...) const> : MethodTraits<C, R, Args...> {};

template <class R>
void give_back(const ServedCall& call, Stored<R> result) {
  if (call.stays()) {
    if constexpr (std::is_same_v<typename KeptAs<R>::Type, Stored<R>>) {
      return call.keep({std::make_shared<Stored<R>>(std::move(result)), &typeid(Stored<R>)});
    } else {
      require(result != nullptr, "'", call.function().name, "' has returned a null pointer");
      using Kept = typename KeptAs<R>::Type;
      return call.keep({std::move(result), &typeid(Kept)});
    }
  }
  if constexpr (Sendable<Stored<R>>) {
    call.answer(result);
  } else {
    throw InvalidArgument(text("the result of '", call.function().name, "' is ", readable(typeid(R).name()),
                               ", which stays where it is: call it with remote()"));
  }
}

template <auto body>
void serve(const std::shared_ptr<ServedCall>& call) {
  using Traits = BodyTraits<std::decay_t<decltype(body)>>;
  using Result = typename Traits::Result;
  auto arguments = call->read_arguments<typename Traits::Arguments>();
  const AgentScope scope(call->core());
  using Returned = decltype(Traits::template apply<body>(arguments));
  if constexpr (ResultOf<std::decay_t<Returned>>::kIsFuture) {
    const auto future = Traits::template apply<body>(arguments);
    future.when_done([call, future] {
      try {
        if (const auto error = future.error()) std::rethrow_exception(error);
        give_back<Result>(*call, *future.state()->value);
      } catch (...) {
        call->fail(std::current_exception());
      }
    });
  } else if constexpr (std::is_void_v<Returned>) {
    Traits::template apply<body>(arguments);
    give_back<void>(*call, {});
  } else {
    give_back<Result>(*call, Traits::template apply<body>(arguments));
  }
}

template <auto body>
const FunctionRow& add(const std::string& name) {
  using Signature = typename BodyTraits<std::decay_t<decltype(body)>>::Signature;
  return add_function({.name = name, .signature = readable(typeid(Signature).name()), .run = &serve<body>});
}

}  // namespace internal

/// The name under which others call `body`, a function or a member function. Naming it registers it in this
/// process while the program starts; both ends must name it alike.
template <FunctionName name, auto body>
inline const Function<typename internal::BodyTraits<std::decay_t<decltype(body)>>::Signature> function{
    internal::add<body>(name.text)};

}  // namespace trireme::rpc
