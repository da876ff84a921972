// The copy button of a console example copies its commands: neither the `$` nor what they print.
document.addEventListener("click", event => {
  const button = event.target.closest("[data-clipboard-target]")
  const code = button && document.querySelector(button.dataset.clipboardTarget)
  if (!code?.closest(".language-console")) return
  let continues = false
  const commands = code.textContent.split("\n").filter(line => {
    const isCommand = continues || line.startsWith("$ ")
    continues = isCommand && line.endsWith("\\")
    return isCommand
  })
  button.dataset.clipboardText = commands.map(line => line.replace(/^\$ /, "")).join("\n")
}, true)
