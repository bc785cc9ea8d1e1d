// The chosen theme, before anything is painted.
(() => {
  let theme = null;
  try { theme = localStorage.getItem('hanzo.theme'); } catch { /* storage may be forbidden */ }
  if (theme === 'light' || theme === 'dark') document.documentElement.dataset.theme = theme;
})();
