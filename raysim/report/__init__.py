"""Reports: reads run directories only, through their files."""
